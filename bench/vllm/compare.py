"""The comparison: all contenders are up, and get the same requests one after the other."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.demo import warm_up
from bench.demo.capacity import Capacity
from bench.demo.load import REGIMES, LoadBounds, Offer, Regime, mix, unread
from bench.runner.comparison import LiveComparison, Measurement
from bench.runner.offered import looped, replayed
from bench.runner.started import LiveTarget
from bench.vllm.chats import as_agents, as_chats
from bench.vllm.contenders import CONTENDERS, VllmSetting
from bench.vllm.figures import FIGURES, figures_of

PATIENCE = 120.0  # seconds for the answers, from the last arrival on
AGENTS = "agents"
LOADS = {
    **REGIMES,
    "light": Regime("light", 0.5, 0.5, 0.0, 1.0),
    AGENTS: Regime(AGENTS, 1.0, 1.0, 0.0, 1.0),
}
"""The demo's regimes, one in which hardly anybody waits, and one whose chats are agents' turns."""
_WARM_SECONDS, _WARM_PATIENCE = 8.0, 120.0


@dataclass(frozen=True, slots=True)
class ComparedLoad:
    """The load: regimes, their bounds, and the requests of the measuring warm-up."""

    regimes: Sequence[Regime]
    bounds: LoadBounds
    num_warm_up: int
    max_tokens: int
    """Most tokens of a chat's output, 0 for any number."""


class VllmComparison(LiveComparison):
    """The contenders, all up; what the first one carries sets the load of all."""

    figures = FIGURES
    stay_up = True
    takes_median = True
    width = 200

    def __init__(self, setting: VllmSetting, names: Sequence[str], load: ComparedLoad) -> None:
        super().__init__()
        self._setting = setting
        self._load = load
        self._capacity: Capacity | None = None
        self._offers: dict[str, Offer] = {}
        self.systems = names
        self.regimes = [each.name for each in load.regimes]

    def serve(self, system: str) -> AbstractAsyncContextManager[LiveTarget]:
        """Start a contender."""
        folder, contender = self._setting.log_dir / system, CONTENDERS[system]
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        said = f"{system} ({contender.said}): starting, logs in {folder}/"
        self.console.print(said, markup=False)
        return contender.serve(self._setting, folder)

    async def prepare(self, system: str, target: LiveTarget, seed: int) -> None:
        """Warm a contender up; the first one's capacity sets the load of all."""
        load, places = self._load, self._setting.limits.max_running
        model = Path(self._setting.model).name
        if self._capacity is not None:
            plan = unread(mix(model, 4 * places, random.Random("warm"), load.max_tokens))
            await looped(target.url, as_chats(plan), 2 * places, _WARM_SECONDS, _WARM_PATIENCE)
            return
        numbers = (places, load.num_warm_up, seed, load.max_tokens)
        self._capacity = await warm_up.warm_up(target.url, model, *numbers)
        self.console.print(f"  {self._capacity}")
        for regime in load.regimes:
            offer = Offer.of(regime, self._capacity.requests_per_s, load.bounds)
            self._offers[regime.name] = offer
            self.console.print(f"  {regime.name}: {offer}")

    async def measure(self, system: str, target: LiveTarget, regime: str, seed: int) -> Measurement:
        """Offer a seed's requests; figures are by class."""
        assert self._capacity is not None, "the first contender was warmed up"
        offer = self._offers[regime]
        plan = offer.plan(Path(self._setting.model).name, seed, self._load.max_tokens)
        plan = as_chats(plan, tells_priority=CONTENDERS[system].tells_priority)
        if regime == AGENTS:
            plan = as_agents(plan, seed)
        before = sum(target.cpu_seconds().values())
        requests = await replayed(target.url, plan, within=offer.seconds + PATIENCE)
        taken = sum(target.cpu_seconds().values()) - before
        return Measurement(figures_of(requests, self._capacity.alone, taken), requests)

    def title(self, regime: str, runs: Mapping[int, Measurement]) -> str:
        """Return the number of requests and seeds."""
        num_requests = self._offers[regime].num_requests
        return f"{regime}: {num_requests} requests each, seeds: {len(runs)}"

    def packed(self) -> Mapping[str, Any]:
        """Return the capacity, the offers and what each contender is."""
        return {
            "capacity": None if self._capacity is None else asdict(self._capacity),
            "offers": {name: asdict(offer) for name, offer in self._offers.items()},
            "contenders": {name: each.said for name, each in CONTENDERS.items()},
        }
