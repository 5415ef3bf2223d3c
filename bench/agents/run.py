"""Every system under the same sessions, seed by seed, side by side."""

from __future__ import annotations

import asyncio
import random
import secrets
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.agents.loop import AgentLoop, AgentRequests, AgentRun
from bench.agents.make import refuse_too_long
from bench.agents.report import FIGURES, figures_of, packed, print_run
from bench.agents.systems import AgentTarget, System
from bench.agents.texts import Measure, Texts, num_shared, shared_starts
from bench.demo.compare import order_of
from bench.demo.table import print_compared
from bench.demo.verdict import compared
from bench.serve.client import Client, Endpoint, RequestFailedError
from bench.serve.measure import served_model
from bench.serve.plan import PATHS, Planned
from bench.serve.replay import ReplayedRequest, ask
from headway.errors import Code, HeadwayError
from headway.workload.sessions import Session
from results.output import make_console, num_cores, write_json

_WIDTH = 140
_PROBE_CHARS = (120, 600)
_PROBE_BLOCK = 2000  # characters; a probe is never longer


@dataclass(frozen=True, slots=True)
class AgentsSetting:
    """What every run has alike; ``sessions`` makes those of a seed, ``block`` tokens a block.

    ``salt``: of the texts, "" for a new one in each run. ``kill_at``: seconds after the start
    when the leader is killed. ``num_warm_up``: requests before it counts.
    """

    sessions: Callable[[int], Sequence[Session]]
    block: int
    model: str = ""
    api_key: str = ""
    salt: str = ""
    names: bool = True
    thinks: bool = False
    ignores_eos: bool = True
    seconds: float = float("inf")
    timeout: float = 120.0
    num_warm_up: int = 8
    kill_at: float | None = None


@dataclass(frozen=True, slots=True)
class SystemRun:
    """One system under one seed."""

    run: AgentRun
    figures: Mapping[str, float]
    killed_at: float | None


async def compare(
    setting: AgentsSetting, systems: Sequence[System], seeds: Sequence[int], json_file: Path | None
) -> int:
    """Run all systems under every seed, every second one in reverse; print, and write the file.

    Returns 1 where a turn failed, 130 where it was stopped.
    """
    console, stopping = make_console(_WIDTH), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stopping.set)
    runs: dict[str, list[SystemRun]] = {each.name: [] for each in systems}
    for place, seed in enumerate(seeds):
        for system in order_of(systems, place):
            if stopping.is_set():
                break
            console.print(f"seed {seed}, {system.name}", markup=False, highlight=False)
            async with system.serving() as served:
                one = await _run(setting, served, seed, stopping)
            runs[system.name].append(one)
            print_run(console, one.run, one.figures, one.killed_at)
            write_json(json_file, _report(runs, seeds))
    _print_compared(console, runs)
    if stopping.is_set():
        return 130
    return int(any(each.figures["num_failed"] for of_system in runs.values() for each in of_system))


def _print_compared(console: Console, runs: Mapping[str, Sequence[SystemRun]]) -> None:
    """Print each further system beside the first, over the seeds that both have."""
    (first, ones), *others = runs.items()
    for name, theirs in others:
        pairs = list(zip(ones, theirs, strict=False))
        if pairs:
            rows = compared([a.figures for a, _ in pairs], [b.figures for _, b in pairs], FIGURES)
            print_compared(console, f"pairs: {len(pairs)}", (first, name), rows)


def _report(runs: Mapping[str, Sequence[SystemRun]], seeds: Sequence[int]) -> dict[str, Any]:
    return {
        "seeds": list(seeds),
        "num_cores": num_cores(),
        "written_at": time.strftime("%Y-%m-%d %H:%M:%S"),
        "systems": {
            name: [packed(each.run, each.figures, each.killed_at) for each in of_system]
            for name, of_system in runs.items()
        },
    }


# --- one run --------------------------------------------------------------------------


async def _run(
    setting: AgentsSetting, served: AgentTarget, seed: int, stopping: asyncio.Event
) -> SystemRun:
    client = Client(Endpoint.parse(served.url, setting.api_key), setting.timeout)
    try:
        model, limit = await served_model(client, served.url, setting.model)
        sessions = setting.sessions(seed)
        refuse_too_long(sessions, limit)
        asking = AgentRequests(
            model=model,
            salt=setting.salt or secrets.token_hex(4),
            names=setting.names,
            thinks=setting.thinks,
            ignores_eos=setting.ignores_eos,
            limit=limit,
            seconds=setting.seconds,
        )
        measure = await _measured(client, asking)
        await _warm_up(client, asking, setting.num_warm_up)
        system = system_tokens(sessions, setting.block)
        loop = AgentLoop(client, asking, measure, sessions, setting.block, system)
        killing = asyncio.create_task(_kill(served, setting.kill_at))
        try:
            run = await loop.run(stopping)
        finally:
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
        killed = killing.done() and not killing.cancelled() and served.kill is not None
        return SystemRun(run, figures_of(run), setting.kill_at if killed else None)
    finally:
        client.close()


async def _kill(served: AgentTarget, at: float | None) -> None:
    """Kill the leader at its time, where the system has a standby for it."""
    if served.kill is None or at is None:
        return
    await asyncio.sleep(at)
    await served.kill()


def system_tokens(sessions: Sequence[Session], block: int) -> dict[int, int]:
    """Return the tokens of each session's system message, by session.

    It is what another session's first prompt begins with as well, in whole blocks. A child has
    no more of it than the session that it is compared with.
    """
    tops = [each for each in sessions if each.at is not None]
    firsts = [each.turns[0].hash_ids for each in tops]
    shared = shared_starts(firsts)
    tokens_of = {each.number: num * block for each, num in zip(tops, shared, strict=True)}
    for each in sessions:
        if each.at is None:
            ids = each.turns[0].hash_ids
            both = (min(num_shared(ids, a), b) for a, b in zip(firsts, shared, strict=True))
            tokens_of[each.number] = max(both, default=0) * block
    return tokens_of


async def _measured(client: Client, asking: AgentRequests) -> Measure:
    """Ask three short prompts, and return what the endpoint counts."""
    texts = Texts(f"{asking.salt} measure", 1.0, _PROBE_BLOCK)
    short, long = (texts.between((), 0, chars, f"{chars}") for chars in _PROBE_CHARS)
    alone, longer = [{"role": "user", "content": short}], [{"role": "user", "content": long}]
    three = [*alone, {"role": "assistant", "content": short}, *alone]
    counts = [await _num_prompt_tokens(client, asking, each) for each in (alone, longer, three)]
    if counts[1] <= counts[0]:
        message = (
            f"the endpoint counts {counts[0]} tokens for a short prompt and {counts[1]} for a "
            "longer one: its usage has to count each prompt"
        )
        raise HeadwayError(Code.FAILED_PRECONDITION, message)
    return Measure.of(_PROBE_CHARS, counts[0], counts[1], counts[2])


async def _num_prompt_tokens(
    client: Client, asking: AgentRequests, messages: Sequence[Mapping[str, str]]
) -> int:
    try:
        request = await _asked(client, asking, messages)
    except RequestFailedError as error:
        raise HeadwayError(Code.FAILED_PRECONDITION, f"the first request failed: {error}") from None
    if request.prompt_tokens is None:
        message = "the endpoint does not count prompts: it has to send usage with its streams"
        raise HeadwayError(Code.FAILED_PRECONDITION, message)
    return request.prompt_tokens


async def _warm_up(client: Client, asking: AgentRequests, num_requests: int) -> None:
    """Send short requests at once, so that every worker has computed something."""
    rng = random.Random(asking.salt)
    numbers = [str(rng.randrange(10**9)) for _ in range(num_requests)]
    asked = [[{"role": "user", "content": f"Warm up {number}."}] for number in numbers]
    await asyncio.gather(*(_asked(client, asking, each) for each in asked), return_exceptions=True)


async def _asked(
    client: Client, asking: AgentRequests, messages: Sequence[Mapping[str, str]]
) -> ReplayedRequest:
    planned = Planned(0, 0.0, asking.body(messages, 2), "", None)
    request = ReplayedRequest(planned, 0.0)
    await ask(client, PATHS["chat"], request, time.perf_counter())
    return request
