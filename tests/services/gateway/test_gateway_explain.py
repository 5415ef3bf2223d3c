"""``headway explain`` asks the gateway, which asks the scheduler leader."""

from __future__ import annotations

import argparse
import asyncio
import io
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from cli import explain
from headway.cluster import UnitId
from headway.core.scheduler.events import Chosen, Considered, Decision
from headway.errors import HeadwayError
from headway.request import StreamKey
from services.gateway.auth import key_line
from services.scheduler.explanations import decision_line
from tests.fakes.gateway_harness import Cluster, cluster, until

UNIT = UnitId("decode-1", 0)
DECISION = Decision(
    "boundary",
    12.5,
    "tiny",
    "pascal",
    (Considered(UNIT, (3, 400), 17),),
    (Chosen(StreamKey("g", 1), "chatcmpl-1", UNIT, (2.0,), 0.0),),
    0,
)


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
    assert "B 3, K 400, 17 free blocks" in text


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


def test_what_is_no_gateway_is_named() -> None:
    with pytest.raises(HeadwayError, match="--url"):
        explain.live_lines("http://127.0.0.1:9", "r")
