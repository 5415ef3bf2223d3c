"""``headway bench abuse``: the catalogue, and what the runner counts as a fault."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from bench.abuses.catalogue import CATALOGUE, Abuse, Manner
from bench.abuses.run import Abused, trials_at

KEYS = {name: name for name in ("abuser", "other", "operator")}
SIZES = Abused("", num_asked=3, head_start=0.0, settles=0.0)


def test_the_catalogue_has_forty_abuses_or_more_of_every_manner() -> None:
    assert len({abuse.name for abuse in CATALOGUE}) == len(CATALOGUE) >= 40
    assert {abuse.manner for abuse in CATALOGUE} == set(Manner)
    assert all(json.dumps(abuse.sent("m")) for abuse in CATALOGUE)


@asynccontextmanager
async def answering(
    *others: tuple[int, str], abuser: int = 200, delays: Sequence[float] = ()
) -> AsyncIterator[str]:
    """A server that answers the other key with these in turn, then again the last one.

    Its answers come after ``delays`` in turn, and then at once.
    """
    left, delays_left = list(others), list(delays)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.read(2**16)
        status, text = abuser, ""
        if b"Bearer other" in head:
            status, text = left.pop(0) if len(left) > 1 else left[0]
            if delays_left:
                await asyncio.sleep(delays_left.pop(0))
        body = json.dumps({"choices": [{"text": text}]}).encode()
        writer.write(b"HTTP/1.1 %d x\r\nConnection: close\r\n" % status)
        writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        with suppress(ConnectionError):
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def faults(abuse: Abuse, *others: tuple[int, str], abuser: int = 200) -> list[str]:
    async with (
        answering(*others, abuser=abuser) as url,
        trials_at(url, "m", KEYS, SIZES) as trials,
    ):
        await trials.warm_up()
        trial = await trials.measure(abuse)
        async with asyncio.timeout(60):
            while abuser >= 500 and not trial.faults:  # the abuser was not answered so soon
                trial = await trials.measure(abuse)
    assert len(trial.seconds) == SIZES.num_asked
    assert trial.times_alone[0] > 0
    return [fault for fault in trial.faults if "times" not in fault] + [
        fault.rpartition(" ")[0].rpartition(" ")[0] for fault in trial.faults if "times" in fault
    ]


async def test_other_tokens_and_refusals_are_faults_and_5xx_to_anybody() -> None:
    abuse = Abuse("one", body={"prompt": "a"}, at_once=1)
    alone = [(200, "a")] * 7
    assert await faults(abuse, (200, "a")) == []
    assert await faults(abuse, (200, "a"), abuser=400) == []
    assert await faults(abuse, *alone, (200, "b"), (200, "a")) == [
        "the other key got 'b' in place of 'a'"
    ]
    (refused,) = await faults(abuse, *alone, (429, ""), (200, "a"))
    assert refused.startswith("the other key was answered 429")
    assert await faults(abuse, (200, "a"), abuser=500) == ["the abuser was answered 500"]


@pytest.mark.parametrize("manner", list(Manner))
async def test_an_abuse_of_any_manner_is_over_once_the_other_key_has_asked(manner: Manner) -> None:
    abuse = Abuse("one", body={"prompt": "a" * 9}, at_once=2, manner=manner)
    assert await faults(abuse, (200, "a")) == []


async def test_an_abuse_begins_once_what_the_last_left_behind_is_over() -> None:
    alone, left_behind = [0.01] * 7, [0.2] * 2
    answers = [(200, "a")] * 9 + [(200, "b")] + [(200, "a")]  # b: the first after them
    async with (
        answering(*answers, delays=alone + left_behind) as url,
        trials_at(url, "m", KEYS, replace(SIZES, settles=60.0)) as trials,
    ):
        await trials.warm_up()
        trial = await trials.measure(Abuse("one", body={"prompt": "a"}, at_once=1))
    assert len(trial.seconds) == SIZES.num_asked
    assert trial.faults == ["before it began: the other key got 'b' in place of 'a'"]
