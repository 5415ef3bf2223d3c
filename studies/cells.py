"""Regimes in which orders are compared: each changes one thing.

Most are of drawn requests on two GPUs: Qwen-32B on H100-96, with 72K tokens of KV and host memory
behind it. Some have recorded arrivals (``recorded``). In others the deployment grows and shrinks
with its load, by the same autoscaler for every system.

Lengths that are drawn are cut: the longest requests set how long a run has to be
(``studies.warm``).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from headway.cost.profile import load_profile
from headway.sim.cluster import SimRequest
from headway.sim.experiment import UNLIMITED, Conditions
from headway.sim.network import NetworkParams
from headway.sim.prompts import HASHED_TOKENS
from headway.sim.spec import Autoscaling
from headway.workload.arrivals import Bursts
from studies.layouts import instances, set_ups, topologies
from studies.recorded import AZURE_CHAT, AZURE_CODE, MOONCAKE, SERVEGEN, TraceFiles

_HOST_TOKENS = 400_000
_PREFIXES, _PREFIX_BLOCKS = 4, 2  # blocks of 512 tokens


@dataclass(frozen=True, slots=True)
class Lengths:
    """A log-normal: its median, in tokens, and sigma; ``most`` tokens."""

    median: float
    sigma: float
    most: int

    def draw(self, rng: random.Random) -> int:
        """Draw a length of 1 or more."""
        value = int(self.median * rng.lognormvariate(0.0, self.sigma))
        return max(1, min(self.most, value))


_ANSWER, _CHAT = Lengths(403, 0.6, 1000), Lengths(299, 0.8, 1000)


@dataclass(frozen=True, slots=True)
class Cell:
    """A regime.

    ``load``: requests/s as a share of what the best plain topology carries. ``reasons``,
    ``unread`` and ``shared`` are shares of all requests; shared prompts begin with one of a few.
    ``kv_tokens`` (0: the profile's) and ``max_running`` are those of an instance that decodes.
    ``seconds``: how long requests arrive. ``trace``: recorded requests instead of drawn ones; they
    reason as the trace says, and ``reasons`` of them think drawn tokens before the recorded
    output. ``scaling``: None for instances that stay; others begin as ``initial``, at ``rate``.
    """

    load: float = 1.0
    reasons: float = 0.4
    unread: float = 0.0
    shared: float = 0.0
    bursts: Bursts | None = None
    reasoning: Lengths = Lengths(700, 1.0, 2000)
    kv_tokens: int = 72_000
    max_running: int = 0
    seconds: float = 1000.0
    trace: TraceFiles | None = None
    profile: str = "qwen-32b-h100-96"
    num_instances: int = 2
    scaling: Autoscaling | None = None
    initial: str = ""
    rate: float = 0.0

    @property
    def topologies(self) -> Sequence[str]:
        """Topologies of its GPUs; the autoscaler has pools."""
        return (self.initial,) if self.initial else topologies(self.num_instances)

    @property
    def set_ups(self) -> Sequence[str]:
        """Set-ups that every system chooses from: topologies, and chunks of unified instances."""
        return set_ups(self.topologies)


TRIPLE = Bursts(factor=3.0, length=10.0, share=0.25)
TENFOLD = Bursts(factor=10.0, length=10.0, share=0.1)
LONG = Lengths(8_000, 0.7, 16_000)
SCALED = Autoscaling(max_prefill=4, max_decode=12)
MIXED = Cell()

_DRAWN: Mapping[str, Cell] = {
    **{f"mixed, {load:.0%}": Cell(load) for load in (0.8, 1.0, 1.2)},
    "bursts × 3": Cell(0.9, bursts=TRIPLE),
    "bursts × 10": Cell(0.8, bursts=TENFOLD),
    "long outputs": Cell(reasoning=LONG, seconds=5000.0),
    "chats only": Cell(reasons=0.0, seconds=400.0),
    "reasoning only": Cell(reasons=1.0),
    "tight KV": Cell(kv_tokens=28_000),
    "few places": Cell(max_running=24),
    "shared prefixes": Cell(shared=0.8),
    "half unread": Cell(unread=0.5),
}
CHATS = Cell(reasons=0.0, seconds=350.0, trace=AZURE_CHAT)
CODE = replace(CHATS, seconds=600.0, trace=AZURE_CODE, num_instances=4)
PROMPTS = Cell(
    reasons=0.0,
    kv_tokens=0,
    seconds=500.0,
    trace=MOONCAKE,
    profile="llama-8b-h100",
    num_instances=3,
)
REASONING = Cell(reasons=0.0, seconds=8000.0, trace=SERVEGEN)
RECORDED: Mapping[str, Cell] = {
    "Azure conversation": CHATS,
    "Azure conversation, 40 % reason": replace(CHATS, reasons=0.4, seconds=1000.0),
    "Azure code": CODE,
    "Mooncake": PROMPTS,
    "ServeGen": REASONING,
}
_SCALED: Mapping[str, Cell] = {
    "autoscaled, bursts × 3": Cell(
        bursts=TRIPLE, num_instances=5, scaling=SCALED, initial="1P+4D", rate=4.0
    ),
    "autoscaled, Azure conversation": replace(
        CHATS, num_instances=6, scaling=SCALED, initial="3P+3D", rate=12.0
    ),
}
CELLS: Mapping[str, Cell] = MappingProxyType({**_DRAWN, **RECORDED, **_SCALED})


def conditions(cell: Cell, topology: str) -> Conditions:
    """Return the GPUs in a topology, or the bounds of the autoscaler, the same for all systems."""
    profile = replace(load_profile(cell.profile), host_capacity_tokens=_HOST_TOKENS)
    prefill = replace(profile, prefill_chunk_tokens=4096)
    kv_tokens = cell.kv_tokens or profile.kv_capacity_tokens
    others = replace(prefill, kv_capacity_tokens=kv_tokens)
    return Conditions(
        instances(topology, prefill, others),
        NetworkParams(profile.link_bytes_per_s),
        max_running=cell.max_running,
        limits=UNLIMITED,
        autoscaling=cell.scaling,
    )


# --- requests -------------------------------------------------------------------------


def requests(cell: Cell, seed: int, rate: float) -> Iterator[SimRequest]:
    """Yield a cell's requests by arrival, ``rate`` a second."""
    rng = random.Random(seed)
    if cell.trace is not None:
        yield from _recorded(cell, cell.trace, rate, rng)
        return
    gaps = cell.bursts.gaps(rate, rng) if cell.bursts else iter(lambda: rng.expovariate(rate), None)
    now, number = 0.0, 0
    while now < cell.seconds:
        now += next(gaps)
        yield _drawn(cell, rng, number, now)
        number += 1


def _drawn(cell: Cell, rng: random.Random, number: int, at: float) -> SimRequest:
    prompt = Lengths(493, 1.0, 8192).draw(rng)
    is_read = rng.random() >= cell.unread
    hashes: tuple[int, ...] = ()
    if cell.shared and rng.random() < cell.shared:
        prompt, first = prompt + _PREFIX_BLOCKS * HASHED_TOKENS, rng.randrange(_PREFIXES)
        hashes = tuple(range(first * _PREFIX_BLOCKS, (first + 1) * _PREFIX_BLOCKS))
    if rng.random() < cell.reasons:
        reasoning = cell.reasoning.draw(rng)
        output = reasoning + _ANSWER.draw(rng)
        name = f"reasoning-{number}"
        return SimRequest(name, at, prompt, output, reasoning, hashes, is_read)
    answer = _CHAT.draw(rng)
    return SimRequest(f"chat-{number}", at, prompt, answer, 0, hashes, is_read)


def _recorded(
    cell: Cell, trace: TraceFiles, rate: float, rng: random.Random
) -> Iterator[SimRequest]:
    num_requests = round(rate * cell.seconds)
    for number, row in enumerate(trace.rows(rate, num_requests, rng)):
        reasoning, output = row.reasoning_tokens, row.output_tokens or 1
        if rng.random() < cell.reasons:
            reasoning = cell.reasoning.draw(rng)
            output += reasoning
        name = f"{'reasoning' if reasoning else 'chat'}-{number}"
        prompt = row.prompt_tokens or 1
        yield SimRequest(name, row.arrival_at, prompt, output, reasoning, row.prefix_hashes)
