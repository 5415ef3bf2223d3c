"""Regimes in which orders are compared: each changes one thing.

Most are of drawn requests on one prefill and one decode instance of Qwen-32B on H100-96, with 72K
tokens of KV and host memory behind it. Some have recorded arrivals (``recorded``). In others the
deployment grows and shrinks with its load, by the same autoscaler for every system.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType

from bench.studies.recorded import AZURE_CHAT, AZURE_CODE, MOONCAKE, SERVEGEN, TraceFiles
from headway.cluster import Role
from headway.cost.profile import load_profile
from headway.sim.cluster import SimRequest
from headway.sim.experiment import UNLIMITED, Conditions
from headway.sim.network import NetworkParams
from headway.sim.prompts import HASHED_TOKENS
from headway.sim.spec import Autoscaling
from headway.sim.worker import InstanceSpec
from headway.workload.arrivals import Bursts

NUM_REQUESTS = 600
SATURATION = 1.2  # requests/s of the mixed cells whose tokens the plain deployment just generates
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


@dataclass(frozen=True, slots=True)
class Cell:
    """A regime.

    ``rate``: requests/s. ``reasons``, ``unread`` and ``shared`` are shares of all requests; shared
    prompts begin with one of a few. ``kv_tokens`` (0: the profile's) and ``max_running`` are those
    of a decode instance. ``trace``: recorded requests instead of drawn ones; they reason as the
    trace says, and ``reasons`` of them think drawn tokens before the recorded output.
    ``instances``: prefill and decode ones. ``scaling``: None for instances that stay.
    """

    rate: float
    reasons: float = 0.4
    unread: float = 0.0
    shared: float = 0.0
    bursts: Bursts | None = None
    reasoning: Lengths = Lengths(700, 1.0, 16_000)
    kv_tokens: int = 72_000
    max_running: int = 0
    num_requests: int = NUM_REQUESTS
    trace: TraceFiles | None = None
    profile: str = "qwen-32b-h100-96"
    instances: tuple[int, int] = (1, 1)
    scaling: Autoscaling | None = None

    @property
    def is_plain(self) -> bool:
        """True if requests are drawn and instances stay."""
        return self.trace is None and self.scaling is None


TRIPLE = Bursts(factor=3.0, length=10.0, share=0.25)
TENFOLD = Bursts(factor=10.0, length=10.0, share=0.1)
LONG = Lengths(8_000, 0.7, 30_000)
SCALED = Autoscaling(max_prefill=4, max_decode=12)

_DRAWN: Mapping[str, Cell] = MappingProxyType(
    {
        **{f"mixed, {load:.0%}": Cell(load * SATURATION) for load in (0.5, 0.8, 1.0, 1.2, 1.5)},
        "bursts × 3": Cell(0.9 * SATURATION, bursts=TRIPLE),
        "bursts × 10": Cell(0.8 * SATURATION, bursts=TENFOLD),
        "long outputs": Cell(0.12, reasoning=LONG, num_requests=300),
        "chats only": Cell(4.5, reasons=0.0, num_requests=1500),
        "reasoning only": Cell(0.55, reasons=1.0, num_requests=400),
        "tight KV": Cell(0.45, kv_tokens=28_000, num_requests=400),
        "few places": Cell(0.9, max_running=24),
        "shared prefixes": Cell(SATURATION, shared=0.8),
        "half unread": Cell(SATURATION, unread=0.5),
        "tight KV, half unread": Cell(0.45, unread=0.5, kv_tokens=28_000, num_requests=400),
    }
)
CHATS = Cell(5.0, reasons=0.0, num_requests=800, trace=AZURE_CHAT)
PROMPTS = Cell(
    1.2,
    reasons=0.0,
    kv_tokens=0,
    num_requests=300,
    trace=MOONCAKE,
    profile="llama-8b-h100",
    instances=(2, 1),
)
REASONING = Cell(0.15, reasons=0.0, num_requests=300, trace=SERVEGEN)
_RECORDED: Mapping[str, Cell] = MappingProxyType(
    {
        "Azure conversation": CHATS,
        "Azure conversation, 40 % reason": replace(CHATS, rate=1.3, reasons=0.4, num_requests=600),
        "Azure code": replace(
            CHATS, rate=1.0, num_requests=600, trace=AZURE_CODE, instances=(3, 1)
        ),
        "Mooncake": PROMPTS,
        "ServeGen": REASONING,
        "ServeGen, overload": replace(REASONING, rate=0.2),
    }
)
_SCALED: Mapping[str, Cell] = MappingProxyType(
    {
        "autoscaled, bursts × 3": Cell(
            4.0, bursts=TRIPLE, num_requests=800, instances=(1, 4), scaling=SCALED
        ),
        "autoscaled, Azure conversation": replace(
            CHATS, rate=12.0, num_requests=1500, instances=(3, 3), scaling=SCALED
        ),
    }
)
CELLS: Mapping[str, Cell] = MappingProxyType({**_DRAWN, **_RECORDED, **_SCALED})


def conditions(cell: Cell) -> Conditions:
    """Return the same GPUs for all systems, or the same bounds of the autoscaler."""
    profile = replace(load_profile(cell.profile), host_capacity_tokens=_HOST_TOKENS)
    prefill = replace(profile, chunk_tokens=4096)
    kv_tokens = cell.kv_tokens or profile.kv_capacity_tokens
    decode = replace(profile, kv_capacity_tokens=kv_tokens)
    kinds = (InstanceSpec(Role.PREFILL, prefill), InstanceSpec(Role.DECODE, decode))
    return Conditions(
        tuple(zip(kinds, cell.instances, strict=True)),
        NetworkParams(profile.link_bytes_per_s),
        max_running=cell.max_running,
        limits=UNLIMITED,
        autoscaling=cell.scaling,
    )


# --- requests -------------------------------------------------------------------------


def requests(cell: Cell, seed: int, load: float = 1.0) -> Iterator[SimRequest]:
    """Yield a cell's requests by arrival."""
    rng, rate = random.Random(seed), cell.rate * load
    if cell.trace is not None:
        yield from _recorded(cell, cell.trace, rate, rng)
        return
    gaps = cell.bursts.gaps(rate, rng) if cell.bursts else iter(lambda: rng.expovariate(rate), None)
    now = 0.0
    for number, gap in enumerate(islice(gaps, cell.num_requests)):
        now += gap
        yield _drawn(cell, rng, number, now)


def _drawn(cell: Cell, rng: random.Random, number: int, at: float) -> SimRequest:
    prompt = Lengths(493, 1.0, 8192).draw(rng)
    is_read = rng.random() >= cell.unread
    hashes: tuple[int, ...] = ()
    if cell.shared and rng.random() < cell.shared:
        prompt, first = prompt + _PREFIX_BLOCKS * HASHED_TOKENS, rng.randrange(_PREFIXES)
        hashes = tuple(range(first * _PREFIX_BLOCKS, (first + 1) * _PREFIX_BLOCKS))
    if rng.random() < cell.reasons:
        reasoning = cell.reasoning.draw(rng)
        output = reasoning + Lengths(403, 0.6, 4000).draw(rng)
        name = f"reasoning-{number}"
        return SimRequest(name, at, prompt, output, reasoning, hashes, is_read)
    answer = Lengths(299, 0.8, 4000).draw(rng)
    return SimRequest(f"chat-{number}", at, prompt, answer, 0, hashes, is_read)


def _recorded(
    cell: Cell, trace: TraceFiles, rate: float, rng: random.Random
) -> Iterator[SimRequest]:
    for number, row in enumerate(trace.rows(rate, cell.num_requests, rng)):
        reasoning, output = row.reasoning_tokens, row.output_tokens or 1
        if rng.random() < cell.reasons:
            reasoning = cell.reasoning.draw(rng)
            output += reasoning
        name = f"{'reasoning' if reasoning else 'chat'}-{number}"
        prompt = row.prompt_tokens or 1
        yield SimRequest(name, row.arrival_at, prompt, output, reasoning, row.prefix_hashes)
