"""A vLLM worker of several processes: the tokens of one, deaths, and what is refused."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from headway.errors import HeadwayError
from tests.fakes.local_cluster import LocalCluster, local_cluster, until
from tests.fakes.vllm_rig import MODEL, streamed, worker_config

pytest.importorskip("vllm", reason="vLLM is not installed in this environment: make test-vllm")

import httpx

from headway_vllm import ranks
from headway_vllm.loading import load_native, load_parts
from headway_vllm.ranks import Ranks

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
PATIENCE = 600.0
# The shipped model has three heads of keys and values, so as many processes divide it.
NUM_PROCESSES = 3
SEVERAL = {"vllm": {"tensor_parallel_size": NUM_PROCESSES}}


# --- what several processes say -----------------------------------------------------------


def answers_of(engine: str, size: int, folder: Path) -> Mapping[str, Any]:
    """What an engine of so many processes says; vLLM takes one group a process, so each has its
    own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fakes.vllm_share", engine, str(size), str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    found: Mapping[str, Any] = json.loads((folder / f"answers-{engine}-{size}.json").read_text())
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def one(folder: Path) -> Mapping[str, Any]:
    return answers_of("vllm", 1, folder)


@pytest.fixture(scope="module")
def several(folder: Path, one: Mapping[str, Any]) -> Mapping[str, Any]:
    return answers_of("vllm", NUM_PROCESSES, folder)


def test_each_process_has_its_share_of_the_heads_and_together_they_show_all(
    one: Mapping[str, Any], several: Mapping[str, Any]
) -> None:
    assert (one["kept_heads"], several["kept_heads"]) == (3, 1)
    assert (one["heads"], several["heads"]) == (3, 3)
    assert several["layout"] == one["layout"] == "tokens"


def test_several_processes_draw_the_tokens_of_one_though_requests_lose_their_blocks(
    one: Mapping[str, Any], several: Mapping[str, Any]
) -> None:
    """Greedy, sampled with seeds, and under a grammar."""
    assert several["uniboost"] == one["uniboost"]
    assert several["num_lost"] > 0
    text = Tokenizer.from_file(f"{MODEL}/tokenizer.json").decode(several["uniboost"]["12"])
    assert re.fullmatch("yes|no|[0-9]{3}", text)


def test_several_processes_draw_the_tokens_of_one_when_kv_waits_in_host_memory(
    one: Mapping[str, Any], several: Mapping[str, Any]
) -> None:
    assert several["swapped"] == one["uniboost"]
    assert several["num_swaps"] > 0


def test_hidden_states_and_log_probabilities_of_several_processes_are_those_of_one(
    one: Mapping[str, Any], several: Mapping[str, Any]
) -> None:
    np.testing.assert_allclose(several["hidden"], one["hidden"], atol=1e-3)
    assert several["logprobs"] == pytest.approx(one["logprobs"], abs=1e-4)


def test_kv_goes_between_one_process_and_several(
    one: Mapping[str, Any], several: Mapping[str, Any], folder: Path
) -> None:
    assert several["continued"] == one["continued"]  # from the KV of one
    ours, theirs = (np.fromfile(folder / f"kv-{size}", np.float32) for size in (1, NUM_PROCESSES))
    of_tokens = np.arange(ours.size).reshape(6, 2, 128, 3, 32)[:, :, :100].ravel()
    np.testing.assert_allclose(ours[of_tokens], theirs[of_tokens], atol=1e-3)


def test_several_processes_of_a_vllm_that_plans_draw_the_same(
    one: Mapping[str, Any], folder: Path
) -> None:
    found = answers_of("vllm-native", NUM_PROCESSES, folder)
    assert found["uniboost"] == one["uniboost"]
    assert found["bytes"] == 2 * 6 * 3 * 32 * 4


# --- what is refused ----------------------------------------------------------------------


@pytest.mark.parametrize("load", [load_parts, load_native])
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tensor_parallel_size": 4}, "6.* divisible by tensor parallel size.*4"),
        ({"tensor_parallel_size": 2}, "size is 2; it must be 1, or a divisor of .*KV heads, 3"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size is 0"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size is 2; it must be 1"),
        (
            {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"},
            "distributed_executor_backend is 'mp'",
        ),
    ],
)
def test_what_processes_cannot_share_is_refused_before_any_starts(
    monkeypatch: pytest.MonkeyPatch, load: Any, options: dict[str, Any], named: str
) -> None:
    monkeypatch.setattr(ranks, "FOLLOWER", ("/no/such/command",))
    with pytest.raises(HeadwayError, match=named):
        load(worker_config(engine="vllm", engine_args={"vllm": options}))


@pytest.mark.parametrize(
    ("program", "patience", "named"),
    [
        ("raise SystemExit(3)", PATIENCE, "rank 1 of vLLM, process .* ended with status 3"),
        ("import time; time.sleep(3600)", 0.5, "not answered for 0.5 s; distributed_timeout"),
    ],
)
def test_a_rank_that_does_not_come_is_named(
    monkeypatch: pytest.MonkeyPatch, program: str, patience: float, named: str
) -> None:
    monkeypatch.setattr(ranks, "FOLLOWER", (sys.executable, "-c", program))
    with pytest.raises(HeadwayError, match=named):
        Ranks(2, 1, patience)


# --- deaths -------------------------------------------------------------------------------

NUM_TOKENS = 60
REQUESTS = range(4)


def children_of(pid: int | None) -> set[int]:
    """The followers of a worker."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            command = (status.parent / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == pid and b"headway_vllm.follower" in command:
            found.add(int(status.parent.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def served(running: LocalCluster, kill: int | None = None) -> list[list[int]]:
    """All answers; a process may be killed in the midst of them."""
    begun = asyncio.Event()
    async with httpx.AsyncClient(base_url=running.base_url, timeout=PATIENCE) as client:

        def heard(why: str, num_tokens: int) -> None:
            if num_tokens:
                begun.set()

        asking = [streamed(client, each, NUM_TOKENS, each % 2, heard) for each in REQUESTS]
        asked = [asyncio.create_task(each) for each in asking]
        if kill is not None:
            await begun.wait()
            os.kill(kill, signal.SIGKILL)
        return await asyncio.gather(*asked)


@pytest.mark.system
async def test_whichever_process_of_a_worker_is_killed_all_of_them_end_and_no_token_is_lost(
    store_url: str, cluster: str, tmp_path: Path
) -> None:
    flags = ("--engine", "vllm", "--engine-args", json.dumps(SEVERAL), "--dtype", "float32")
    roles = ("--prefill", "0", "--decode", "0", "--unified", "1", "--worker.num-threads", "1")
    async with local_cluster(store_url, cluster, tmp_path, *flags, *roles) as running:
        expected = await served(running)
        worker = running.process("unified-1")
        for victim in ("follower", "worker"):
            pid = worker.pid
            assert pid is not None
            followers = children_of(pid)
            assert len(followers) == NUM_PROCESSES - 1
            killed = pid if victim == "worker" else followers.pop()
            others = {pid, *children_of(pid)} - {killed}
            assert await served(running, killed) == expected

            async def is_gone(others: set[int] = others) -> bool:
                return not any(map(is_alive, others))

            await until(is_gone, PATIENCE)

            async def is_back(pid: int = pid) -> bool:
                serves = any(each.member_id == "unified-1" for each in await running.workers())
                return serves and worker.pid not in (None, pid) and not worker.is_awaited

            await until(is_back, PATIENCE)
