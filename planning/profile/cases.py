"""The matrix of held-out loads: presets, topologies, rates, mixes and bursts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from headway.errors import invalid
from headway.workload.arrivals import Bursts
from headway.workload.traces import TraceRow
from planning.profile.live import TORCH, LiveEngine
from planning.profile.loads import CHATS, LONG_OUTPUTS, LONG_PROMPTS, SIX_FOLD, Mix, Part, drawn
from services.local.options import WorkerCounts

PRESETS = ("vllm-like", "headway")
TOPOLOGIES: Mapping[str, WorkerCounts] = {
    "1P1D": WorkerCounts(1, 1),
    "1P2D": WorkerCounts(1, 2),
    "2U": WorkerCounts(0, 0, unified=2),
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of load: its mix, its rate as a share of the capacity for that mix, its bursts."""

    share: float
    mix: Mix = CHATS
    bursts: Bursts | None = None


KINDS: Mapping[str, Kind] = {
    "20%": Kind(0.2),
    "50%": Kind(0.5),
    "80%": Kind(0.8),
    "100%": Kind(1.0),
    "long-prompts": Kind(0.5, LONG_PROMPTS),
    "long-outputs": Kind(0.5, LONG_OUTPUTS),
    "bursts": Kind(0.5, bursts=SIX_FOLD),
}


@dataclass(frozen=True, slots=True)
class HeldOutCase:
    """A load on a deployment, by the names of its preset, topology and kind."""

    preset: str
    topology: str
    kind: str

    @property
    def name(self) -> str:
        """Its name: ``vllm-like/1P1D/80%``."""
        return f"{self.preset}/{self.topology}/{self.kind}"

    def rate(self, capacity: float) -> float:
        """Return the rate where workers have this capacity for the mix, requests/s."""
        return KINDS[self.kind].share * capacity

    def rows(self, capacity: float, count: int, seed: int) -> list[TraceRow]:
        """Return its requests."""
        kind = KINDS[self.kind]
        return drawn([Part(count, self.rate(capacity), kind.mix, kind.bursts)], seed)


def matrix() -> list[HeldOutCase]:
    """Return all cases."""
    return [
        HeldOutCase(preset, topology, kind)
        for preset in PRESETS
        for topology in TOPOLOGIES
        for kind in KINDS
    ]


def chosen(patterns: Sequence[str], engine: LiveEngine = TORCH) -> list[HeldOutCase]:
    """Return the cases whose names match a pattern, ``*/1P1D/*``, and that an engine can serve.

    HeadwayError for none.
    """
    served = [name for name, topology in TOPOLOGIES.items() if engine.can_serve(topology)]
    cases = [
        case
        for case in matrix()
        if case.topology in served and any(fnmatchcase(case.name, each) for each in patterns)
    ]
    if not cases:
        limit = f"names or patterns of PRESET/TOPOLOGY/KIND, with presets {', '.join(PRESETS)}, "
        limit += f"topologies {', '.join(served)} and kinds {', '.join(KINDS)}"
        raise invalid("--cases", ", ".join(patterns), limit)
    return cases
