"""The comparison: all contenders are up, and get the same requests one after the other."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.cluster.offered import looped, print_failures, replayed
from bench.cluster.processes import cpu_seconds
from bench.demo import warm_up
from bench.demo.capacity import Capacity
from bench.demo.compare import order_of
from bench.demo.load import REGIMES, LoadBounds, Offer, Regime, mix, unread
from bench.vllm.chats import as_agents, as_chats
from bench.vllm.contenders import CONTENDERS, Comparison
from bench.vllm.figures import ROWS, Runs, cells_of, figures_of, ratios_of
from bench.vllm.server import VllmTarget
from headway.errors import Code, HeadwayError
from results.output import make_console, num_cores, titled_table, write_json

START = 600.0  # seconds in which a contender must serve
PATIENCE = 120.0  # seconds for the answers, from the last arrival on
AGENTS = "agents"
LOADS = {
    **REGIMES,
    "light": Regime("light", 0.5, 0.5, 0.0, 1.0),
    AGENTS: Regime(AGENTS, 1.0, 1.0, 0.0, 1.0),
}
"""The demo's regimes, one in which hardly anybody waits, and one whose chats are agents' turns."""
_WARM_SECONDS, _WARM_PATIENCE = 8.0, 120.0
_WIDTH = 200


@dataclass(frozen=True, slots=True)
class ComparedLoad:
    """The load: regimes, their bounds, the seeds, and the requests of the measuring warm-up."""

    regimes: Sequence[Regime]
    bounds: LoadBounds
    seeds: Sequence[int]
    num_warm_up: int
    max_tokens: int
    """Most tokens of a chat's output, 0 for any number."""


@dataclass(slots=True)
class VllmRuns:
    """The state of a comparison: what the first contender carried, and the figures so far."""

    began_at: str
    machine_load: float
    capacity: Capacity | None = None
    offers: dict[str, Offer] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)
    """Figures of each run, with its regime, seed and contender."""

    def packed(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "began_at": self.began_at,
            "machine_load": self.machine_load,
            "num_cores": num_cores(),
            "capacity": None if self.capacity is None else asdict(self.capacity),
            "offers": {name: asdict(offer) for name, offer in self.offers.items()},
            "contenders": {name: each.said for name, each in CONTENDERS.items()},
            "runs": self.runs,
        }

    def of(self, regime: str) -> Runs:
        """Return a regime's figures by contender; seeds that some have not run are left out."""
        by_contender: dict[str, dict[int, Any]] = {}
        for run in self.runs:
            if run["regime"] == regime:
                by_contender.setdefault(run["contender"], {})[run["seed"]] = run["figures"]
        seeds = set.intersection(*map(set, by_contender.values())) if by_contender else set()
        return {name: [each[seed] for seed in sorted(seeds)] for name, each in by_contender.items()}


async def compare(
    setting: Comparison, names: Sequence[str], load: ComparedLoad, json: Path | None
) -> int:
    """Run the contenders seed by seed, every second one in reverse, and print a table a regime.

    Return 1 where a request failed.
    """
    console = make_console(_WIDTH)
    runs = VllmRuns(time.strftime("%Y-%m-%d %H:%M:%S"), os.getloadavg()[0])
    console.print(f"the machine's load is {runs.machine_load:.1f} on {num_cores()} cores")
    num_failed, targets = 0, dict[str, VllmTarget]()
    try:
        async with AsyncExitStack() as stack:
            for name in names:
                targets[name] = await _started(stack, setting, name, console)
                await _prepare(setting, targets[name].url, load, runs, console)
            for place, seed in enumerate(load.seeds):
                for offer in runs.offers.values():
                    for name in order_of(names, place):
                        run = setting, name, targets[name], offer, seed, load.max_tokens
                        num_failed += await _run(*run, runs, console)
                        write_json(json, runs.packed())
    finally:  # what is known stays known if a later run is stopped
        _print(console, runs)
    return 1 if num_failed else 0


async def _started(
    stack: AsyncExitStack, setting: Comparison, name: str, console: Console
) -> VllmTarget:
    folder = setting.log_dir / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    console.print(f"{name} ({CONTENDERS[name].said}): starting, logs in {folder}/", markup=False)
    try:
        async with asyncio.timeout(START):
            return await stack.enter_async_context(CONTENDERS[name].serve(setting, folder))
    except TimeoutError:
        message = f"{name} does not serve after {START:g} s: see {folder}/"
        raise HeadwayError(Code.UNAVAILABLE, message) from None


async def _run(
    setting: Comparison,
    name: str,
    target: VllmTarget,
    offer: Offer,
    seed: int,
    max_tokens: int,
    runs: VllmRuns,
    console: Console,
) -> int:
    """Offer a seed's requests to one contender; return how many of them failed."""
    assert runs.capacity is not None, "the first contender was warmed up"
    plan = offer.plan(Path(setting.model).name, seed, max_tokens)
    plan = as_chats(plan, tells_priority=CONTENDERS[name].tells_priority)
    if offer.regime.name == AGENTS:
        plan = as_agents(plan, seed)
    before = _cpu(target)
    requests = await replayed(target.url, plan, within=offer.seconds + PATIENCE)
    figures = figures_of(requests, runs.capacity.alone, _cpu(target) - before)
    regime = offer.regime.name
    row = {"regime": regime, "seed": seed, "contender": name, "load": os.getloadavg()[0]}
    runs.runs.append({**row, "figures": figures})
    return print_failures(console, f"{name}, {regime}, seed {seed}", requests)


def _cpu(target: VllmTarget) -> float:
    return sum(map(cpu_seconds, target.processes))


async def _prepare(
    setting: Comparison, url: str, load: ComparedLoad, runs: VllmRuns, console: Console
) -> None:
    """Warm a contender up; the first one's capacity sets the load of all."""
    model, places = Path(setting.model).name, setting.limits.max_running
    if runs.capacity is None:
        numbers = (places, load.num_warm_up, load.seeds[0], load.max_tokens)
        runs.capacity = await warm_up.warm_up(url, model, *numbers)
        console.print(f"  {runs.capacity}")
        for regime in load.regimes:
            offer = Offer.of(regime, runs.capacity.requests_per_s, load.bounds)
            runs.offers[regime.name] = offer
            console.print(f"  {regime.name}: {offer}")
        return
    plan = unread(mix(model, 4 * places, random.Random("warm"), load.max_tokens))
    await looped(url, as_chats(plan), 2 * places, _WARM_SECONDS, _WARM_PATIENCE)


def _print(console: Console, all_runs: VllmRuns) -> None:
    for regime, offer in all_runs.offers.items():
        runs = all_runs.of(regime)
        if not any(runs.values()):
            continue
        num_seeds = len(next(iter(runs.values())))
        title = f"{regime}: {offer.num_requests} requests each, seeds: {num_seeds}"
        console.print(titled_table(title, ("", *runs), cells_of(runs, ROWS)))
        if num_seeds > 1:
            title = f"{regime}: ratios to {next(iter(runs))}, seed by seed"
            console.print(titled_table(title, ("", *runs), cells_of(ratios_of(runs), ROWS)))
