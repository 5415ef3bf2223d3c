"""Every system under the same sessions, seed by seed, side by side."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from bench.agents.loop import AgentLoop, AgentRequests
from bench.agents.make import refuse_too_long
from bench.agents.report import FIGURES, figures_of, packed, print_run
from bench.agents.texts import Measure, Texts, num_shared, shared_starts
from bench.runner.comparison import LiveComparison, Measurement
from bench.runner.leader import kill_leader
from bench.runner.started import LiveTarget
from bench.serve.client import Client, Endpoint, RequestFailedError
from bench.serve.measure import served_model
from bench.serve.plan import PATHS, Planned
from bench.serve.replay import ReplayedRequest, ask
from headway.errors import Code, HeadwayError
from headway.workload.sessions import Session
from services.runtime.store import Store

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


Serve = Callable[[], AbstractAsyncContextManager[LiveTarget]]


class AgentsComparison(LiveComparison):
    """Every system under the same sessions; ``systems``: what starts each, by name."""

    figures = FIGURES

    def __init__(self, setting: AgentsSetting, systems: Mapping[str, Serve]) -> None:
        super().__init__()
        self._setting = setting
        self._serve = systems
        self.systems = list(systems)
        self.stopping = self._stopping = asyncio.Event()

    def serve(self, system: str) -> AbstractAsyncContextManager[LiveTarget]:
        """Start a system, or find it where it serves."""
        return self._serve[system]()

    async def measure(self, system: str, target: LiveTarget, regime: str, seed: int) -> Measurement:
        """Run a seed's sessions; figures are of turns and of whole sessions."""
        setting = self._setting
        client = Client(Endpoint.parse(target.url, setting.api_key), setting.timeout)
        try:
            model, limit = await served_model(client, target.url, setting.model)
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
            system_sizes = system_tokens(sessions, setting.block)
            loop = AgentLoop(client, asking, measure, sessions, setting.block, system_sizes)
            killing = asyncio.create_task(_kill(target, setting.kill_at))
            try:
                run = await loop.run(self._stopping)
            finally:
                killing.cancel()
                (killed,) = await asyncio.gather(killing, return_exceptions=True)
        finally:
            client.close()
        figures, killed_at = figures_of(run), setting.kill_at if killed is True else None
        print_run(self.console, run, figures, killed_at)
        return Measurement(figures, [each.request for each in run.turns], packed(run, killed_at))


# --- one run --------------------------------------------------------------------------


async def _kill(target: LiveTarget, at: float | None) -> bool:
    """Kill the leader at its time, where the system has a standby for it; return whether it did."""
    if at is None or not target.clusters or target.cluster.options.schedulers < 2:
        return False
    config = target.cluster.config
    store = await Store.connect(config.store, config.cluster)
    try:
        await asyncio.sleep(at)
        await kill_leader(target.cluster.supervisor, store)
    finally:
        await store.close()
    return True


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
