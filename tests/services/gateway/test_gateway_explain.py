"""``headway explain`` asks the gateway, which asks the scheduler leader."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import pytest
from structlog.testing import capture_logs

from cli import explain, main
from headway.cluster import UnitId
from headway.core.scheduler.events import Chosen, Considered, Decision
from headway.errors import Code, HeadwayError
from headway.life.record import CallLives, LifeRecord
from headway.life.trace import trace_of
from headway.request import StreamKey
from services.gateway.auth import key_line
from services.gateway.http.exchange import HttpRefusal
from services.gateway.http.explained import TraceDesk
from services.local.run_file import (
    DEFAULT_URL,
    RUN_FILE,
    RunningCluster,
    leave_run_file,
    running_cluster,
    running_url,
    take_run_file_away,
)
from services.scheduler.explanations import decision_line
from tests.fakes.gateway_harness import Cluster, cluster, until
from tests.fakes.lives import conserves


class NoLives:
    """A gateway that has served nobody."""

    async def explain(self, request_id: str) -> Sequence[str]:
        """Return nothing."""
        return ()

    def life(self, request_id: str) -> LifeRecord | None:
        """Return none."""

    def call(self, asked: str) -> CallLives:
        """Return none."""
        return CallLives()

    def follow(self, request_id: str, traceparent: str) -> None:
        """Follow nobody."""

    def lives(self, since: float) -> Iterator[LifeRecord]:
        """Yield none."""
        yield from ()


UNIT = UnitId("decode-1", 0)
DECISION = Decision(
    "boundary",
    12.5,
    "tiny",
    "pascal",
    (Considered(UNIT, (3, 400), 17), Considered(UnitId("d", 1), (9, 80), 5, 123.4, (0.5, 2.0))),
    (Chosen(StreamKey("g", 1), "chatcmpl-1", UNIT, (2.0,), 0.0),),
    0,
)


def placed(request_id: str) -> Chosen:
    return Chosen(StreamKey("g", 1), request_id, UNIT, (2.0,), 0.0)


async def life_of(running: Cluster, asked: str, key: str = "") -> LifeRecord | None:
    """Return the life of a call's only output."""
    (output,) = (await asyncio.to_thread(explain.ask, running.url, asked, key)).outputs
    return output.life


async def told(running: Cluster, request_id: str, *flags: str) -> str:
    parser = argparse.ArgumentParser()
    explain.add_options(parser)
    args = parser.parse_args([request_id, "--url", running.url, *flags])

    def printed() -> str:
        with redirect_stdout(io.StringIO()) as out:
            explain.run(args)
        return out.getvalue()

    return await asyncio.to_thread(printed)


async def test_a_live_request_is_explained_as_a_recorded_one(running: Cluster) -> None:
    running.emulated.decisions.append(decision_line(DECISION))
    text = await told(running, "chatcmpl-1")
    assert "boundary by pascal: to decode-1/0" in text
    assert "batch 3, KV tokens 400, 17 free blocks" in text
    assert "batch 9, KV tokens 80, predicted 123.4, score (0.5, 2), 5 free blocks" in text


async def test_a_request_of_which_nothing_is_known_is_said_to_be_so(running: Cluster) -> None:
    with pytest.raises(HeadwayError, match="no decision about 'chatcmpl-1'"):
        await told(running, "chatcmpl-1")


async def test_without_a_scheduler_there_is_no_explanation(running: Cluster) -> None:
    await running.emulated.stop()
    await until(lambda: not running.service.health()["scheduler_connected"])
    with pytest.raises(HeadwayError, match="no scheduler"):
        await told(running, "chatcmpl-1")


async def test_explanations_need_a_key_where_answers_do(tmp_path: Path, store_url: str) -> None:
    file = tmp_path / "keys"
    file.write_text(key_line("ann", "secret", operator=True))
    file.chmod(0o600)
    async with cluster(tmp_path, store_url, api_key_file=file) as running:
        running.emulated.decisions.append(decision_line(DECISION))
        with pytest.raises(HeadwayError, match=r"API key"):
            await told(running, "chatcmpl-1")
        assert "boundary" in await told(running, "chatcmpl-1", "--api-key", "secret")


async def test_a_request_s_life_is_told_and_its_parts_sum_exactly_to_the_whole(
    running: Cluster,
) -> None:
    with capture_logs() as logs:
        answer = await running.openai().completions.create(
            model="tiny", prompt="once", extra_headers={"x-request-id": "mine"}
        )
        await until(lambda: any(log["event"] == "request_ended" for log in logs))
    life = await life_of(running, "mine")
    assert life is not None
    conserves(life)
    assert (life.status, life.model) == ("stop", "tiny")
    assert answer.usage is not None
    assert life.tokens.output == answer.usage.completion_tokens
    assert life.ttft is not None
    (line,) = (log for log in logs if log["event"] == "request_ended")
    assert line["request_id"] == life.request_id
    assert line["workers"] == list(life.workers) != []
    assert line["ttft"] == pytest.approx(life.ttft, abs=0.1)
    text = await told(running, "mine")
    assert "longest: " in text
    assert "draws tokens on" in text
    assert await life_of(running, answer.id) == life


async def test_an_answer_is_asked_about_by_its_own_id(running: Cluster) -> None:
    client = running.openai()
    own = {"x-request-id": "my-own-1"}
    chat: Any = await client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], extra_headers=own
    )
    items = await client.responses.create(model="tiny", input="hi")
    named = await client.responses.create(model="tiny", input="hi", extra_headers=own)
    assert (chat.id, named.id) == ("chatcmpl-my-own-1", "resp_my-own-1")
    async with anthropic.AsyncAnthropic(api_key="none", base_url=running.url) as other:
        hello: Any = [{"role": "user", "content": "hi"}]
        message = await other.messages.create(model="tiny", max_tokens=9, messages=hello)
    assert message.id.startswith("msg_")
    for shown in (chat.id, items.id, named.id, message.id):
        life = await life_of(running, shown)
        assert life is not None, shown


async def test_every_output_of_a_call_is_told_with_its_own_decisions(running: Cluster) -> None:
    answer = await running.openai().completions.create(model="tiny", prompt="once", n=2)
    names = [f"{answer.id}-0", f"{answer.id}-1"]
    running.emulated.decisions += [
        decision_line(replace(DECISION, chosen=tuple(placed(name) for name in names))),
        decision_line(replace(DECISION, rule="alone", chosen=(placed(names[1]),))),
    ]
    found = await asyncio.to_thread(explain.ask, running.url, answer.id)
    assert [output.request_id for output in found.outputs] == names
    assert [output.life is not None for output in found.outputs] == [True, True]
    rules = [[json.loads(line)["rule"] for line in output.lines] for output in found.outputs]
    assert rules == [["pascal"], ["pascal", "alone"]]
    text = await told(running, answer.id, "--what-if", "")
    assert text.index("output 1 of 2:") < text.index(names[0]) < text.index("output 2 of 2:")
    assert "together with 1 other;" in text


async def test_of_calls_with_one_id_the_newest_is_told_and_older_ones_are_counted(
    running: Cluster,
) -> None:
    own = {"x-request-id": "mine"}
    for _ in range(2):
        await running.openai().completions.create(
            model="tiny", prompt="once", n=2, extra_headers=own
        )
    sent = [request.request_id for request in running.emulated.submitted]
    running.emulated.decisions += [
        decision_line(replace(DECISION, chosen=(placed(name),))) for name in sent
    ]
    found = await asyncio.to_thread(explain.ask, running.url, "mine")
    assert [output.request_id for output in found.outputs] == sent[2:]
    assert [len(list(output.lines)) for output in found.outputs] == [1, 1]
    assert found.num_older == 1
    assert "(1 older call of this id" in await told(running, "mine", "--what-if", "")
    (older,) = (await asyncio.to_thread(explain.ask, running.url, sent[0])).outputs
    assert older.life is not None
    assert older.life.request_id == sent[0]


async def test_a_life_is_its_key_s_alone_and_operators(tmp_path: Path, store_url: str) -> None:
    file = tmp_path / "keys"
    file.write_text(
        "\n".join([key_line("ann", "a"), key_line("bob", "b"), key_line("o", "o", operator=True)])
    )
    file.chmod(0o600)
    async with cluster(tmp_path, store_url, api_key_file=file) as running:
        answer = await running.openai("a").completions.create(
            model="tiny", prompt="once", extra_headers={"x-request-id": "mine"}
        )
        assert answer.usage is not None
        of_ann = await life_of(running, "mine", "a")
        of_bob = await life_of(running, "mine", "b")
        of_all = await life_of(running, answer.id, "b")
        assert of_all is None
        of_ops = await life_of(running, "mine", "o")
        assert of_ann is not None
        assert of_ann == of_ops
        assert of_bob is None
        with pytest.raises(HeadwayError, match="only the key"):
            await asyncio.to_thread(explain.ask, running.url, of_ann.request_id, "b")


async def test_the_last_lives_are_a_trace_for_operators(tmp_path: Path, store_url: str) -> None:
    file = tmp_path / "keys"
    file.write_text("\n".join([key_line("ann", "a"), key_line("o", "o", operator=True)]))
    file.chmod(0o600)
    async with cluster(tmp_path, store_url, api_key_file=file) as running:
        await running.openai("a").completions.create(model="tiny", prompt="once")
        out = tmp_path / "trace.json"
        flags = ["trace", "--out", str(out), "--url", running.url]
        assert await asyncio.to_thread(main, [*flags, "--api-key", "o"]) == 0
        events = json.loads(out.read_text())["traceEvents"]
        assert {"decode", "thread_name"} <= {event["name"] for event in events}
        with pytest.raises(HeadwayError, match="operator"):
            await asyncio.to_thread(explain.fetch, running.url, "/trace.json", "a")
        with pytest.raises(HeadwayError, match="since"):
            await asyncio.to_thread(explain.fetch, running.url, "/trace.json?since=noon", "o")
        late = await asyncio.to_thread(explain.fetch, running.url, "/trace.json?since=1e12", "o")
        assert [event["ph"] for event in late["traceEvents"]] == ["M"]


async def test_one_trace_is_made_at_a_time_even_where_its_client_leaves() -> None:
    desk = TraceDesk(NoLives())
    first = asyncio.ensure_future(desk.ask(""))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(HeadwayError, match="another trace") as refused:
        await desk.ask("")
    assert refused.value.code is Code.RESOURCE_EXHAUSTED

    async def told() -> bytes:
        while True:
            with suppress(HeadwayError):
                return await desk.ask("")
            await asyncio.sleep(0.01)

    assert json.loads(await told()) == trace_of([])


@pytest.mark.parametrize(
    ("address", "is_here"), [("address 127.0.0.1", True), ("address 10.0.0.7", False), ("", False)]
)
async def test_without_keys_a_trace_is_for_clients_on_this_machine(
    address: str, is_here: bool, running: Cluster
) -> None:
    edge = running.service.http_edge
    if is_here:
        edge.screen("GET", "/trace.json", {}, address)
        return
    with pytest.raises(HttpRefusal, match="--api-key-file"):
        edge.screen("GET", "/trace.json", {}, address)


def test_the_run_file_says_where_and_is_its_owner_s_alone(tmp_path: Path) -> None:
    assert running_url(tmp_path) == DEFAULT_URL
    leave_run_file(tmp_path, RunningCluster("http://127.0.0.1:9001", "c", "unix://s"), pid=1)
    assert running_cluster(tmp_path)[1:] == ("c", "unix://s")
    assert running_url(tmp_path) == "http://127.0.0.1:9001"
    assert (tmp_path / RUN_FILE).stat().st_mode & 0o777 == 0o600
    (tmp_path / RUN_FILE).chmod(0o620)
    with pytest.raises(HeadwayError, match="others may write"):
        running_url(tmp_path)
    take_run_file_away(tmp_path)
    assert running_url(tmp_path) == DEFAULT_URL


def test_what_is_no_gateway_is_named() -> None:
    with pytest.raises(HeadwayError, match="--url"):
        explain.ask("http://127.0.0.1:9", "r")
