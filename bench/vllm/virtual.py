"""vLLM's orders on a virtual clock: its real scheduler over a card that is not there.

A profile says what a step costs, so a day of a GPU takes minutes. The load is in proportion to
what the engine carries under vLLM's own order, full all the time.
"""

from __future__ import annotations

import importlib
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from bench.runner.table import print_columns
from bench.runner.verdict import Figure, compared, spread
from bench.vllm.mix import MixArrival, VllmMix, spaced
from headway.cost.pass_time import PassTime
from results.output import make_console, write_json

ORDERS: Mapping[str, str] = MappingProxyType(
    {
        "fcfs": "vllm serve",
        "priority": "--scheduling-policy priority; chats send 0, reasoning 1",
        "plug-in": "--scheduler-cls headway_vllm.HeadwayAsyncScheduler, without hints",
    }
)
FIGURES = (
    Figure("chat_ttft_p50", "chats: TTFT P50, s", 0.1),
    Figure("chat_ttft_p99", "chats: TTFT P99, s", 0.1),
    Figure("chat_in_time", "chats: first token within 1 s", 0.01, more_is_better=True),
    Figure("chat_e2e_p99", "chats: E2E P99, s", 0.1),
    Figure("long_ttfat_p99", "reasoning: TTFAT P99, s", 0.1),
    Figure("long_e2e_p50", "reasoning: E2E P50, s", 0.1),
    Figure("long_e2e_p99", "reasoning: E2E P99, s", 0.1),
    Figure("tokens_per_s", "output tokens/s", 0.0, more_is_better=True),
    Figure("num_preemptions", "preemptions", 1.0),
)
_IN_TIME = 1.0  # seconds to a chat's first token
_NUM_FULL = 400  # requests that measure what the engine carries


class CardShape(NamedTuple):
    """The engine: requests that run at once, KV and chunk in tokens, and a step's cost."""

    num_places: int
    kv_tokens: int
    chunk_tokens: int
    max_model_len: int
    block_size: int
    pass_time: PassTime


@dataclass(frozen=True, slots=True)
class VirtualBench:
    """The comparison: an engine's shape, the mix, and the plug-in's policy."""

    shape: CardShape
    mix: VllmMix
    model: str
    """A folder whose configuration vLLM reads; nothing of it is computed."""
    seconds: float
    """Seconds in which requests arrive."""
    batching: str
    params: Mapping[str, object]

    def serve(self, load: Sequence[MixArrival], order: str) -> Any:
        """Return a ``headway_vllm.virtual.VirtualRun`` of a load in one of the ``ORDERS``."""
        virtual: Any = importlib.import_module("headway_vllm.virtual")
        is_ours = order == "plug-in"
        name, params = (self.batching, self.params) if is_ours else (order, {})
        return virtual.serve(self.shape, self.model, load, name, params)

    def load(self, long_share: float, rate: float, seed: int) -> Sequence[MixArrival]:
        """Return the requests of a run: ``rate`` a second."""
        rng = random.Random(f"virtual {long_share} {seed}")
        count = max(2, int(rate * self.seconds))
        return spaced(self.mix.draw(count, long_share, rng), rate, rng)

    def capacity(self, long_share: float) -> float:
        """Return the requests/s that stock vLLM carries while some wait."""
        rng = random.Random(f"capacity {long_share}")
        load = self.mix.draw(_NUM_FULL, long_share, rng)
        mean = statistics.fmean(each.num_output for each in load)
        return float(self.serve(load, "fcfs").full_tokens_per_s / mean)


def figures_of(load: Sequence[MixArrival], run: Any) -> dict[str, float]:
    """Return the figures of a run; those of a kind that the load lacks are left out."""
    pairs = list(zip(load, run.served, strict=True))
    chats = [each for one, each in pairs if not one.reasoning]
    longs = [each for one, each in pairs if one.reasoning]
    figures = {
        "tokens_per_s": sum(each.num_output for each in load) / run.seconds,
        "num_preemptions": float(sum(each.num_preemptions for _, each in pairs)),
    }
    if chats:
        figures |= spread("chat_ttft", (each.ttft for each in chats))
        figures |= spread("chat_e2e", (each.e2e for each in chats))
        figures["chat_in_time"] = statistics.fmean(each.ttft <= _IN_TIME for each in chats)
    if longs:
        figures |= spread("long_ttfat", (each.ttfat for each in longs))
        figures |= spread("long_e2e", (each.e2e for each in longs))
    return figures


Cell = tuple[float, float]
"""Share of reasoning requests, and load as a share of what the engine carries."""


def compare(
    bench: VirtualBench,
    orders: Sequence[str],
    cells: Sequence[Cell],
    seeds: Sequence[int],
    json: Path | None,
) -> int:
    """Run every order on the same loads, and print a table a cell."""
    console = make_console(120)
    capacity = cache(bench.capacity)
    packed: list[Mapping[str, object]] = []
    for share, load in cells:
        rate = load * capacity(share)
        runs: dict[str, list[Mapping[str, float]]] = {order: [] for order in orders}
        for seed in seeds:
            requests = bench.load(share, rate, seed)
            for order in orders:
                figures = figures_of(requests, bench.serve(requests, order))
                runs[order].append(figures)
                packed.append(
                    {"share": share, "load": load, "seed": seed, "order": order, **figures}
                )
                write_json(json, packed)
        title = f"{share:.0%} reasoning, {load:g} x capacity: {rate:.2f} requests/s"
        first, *others = orders
        changes = {name: compared(runs[first], runs[name], FIGURES) for name in others}
        print_columns(console, title, runs, FIGURES, changes, statistics.median)
    return 0
