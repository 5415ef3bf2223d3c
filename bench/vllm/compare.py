"""The comparison: one contender after the other, the same requests at the same instants."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console

from bench.cluster.offered import looped, print_failures, replayed
from bench.demo import warm_up
from bench.demo.capacity import Capacity
from bench.demo.load import LoadBounds, Offer, Regime, mix, unread
from bench.serve.plan import Plan
from bench.vllm.contenders import CONTENDERS, SAID, Comparison
from bench.vllm.figures import cells, figures_of
from headway.errors import Code, HeadwayError
from results.by_class import number
from results.output import make_table, num_cores, write_json

START = 600.0  # seconds in which a contender must serve
PATIENCE = 120.0  # seconds for the answers, from the last arrival on
_WARM_SECONDS, _WARM_PATIENCE = 8.0, 120.0
_WIDTH = 150


@dataclass(frozen=True, slots=True)
class ComparedLoad:
    """The load: regimes, their bounds, the seed, and the requests of the measuring warm-up."""

    regimes: Sequence[Regime]
    bounds: LoadBounds
    seed: int
    num_warm_up: int
    most_slowdown: float
    """A request attains its objective within so many times its time alone."""
    max_tokens: int
    """Most tokens of a chat's output, 0 for any number."""


@dataclass(slots=True)
class VllmRuns:
    """The state of a comparison: what the first contender carried, and the figures so far."""

    began_at: str
    machine_load: float
    capacity: Capacity | None = None
    offers: dict[str, Offer] = field(default_factory=dict)
    runs: dict[str, dict[str, Mapping[str, float]]] = field(default_factory=dict)
    """Figures by regime and contender."""

    def packed(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "began_at": self.began_at,
            "machine_load": self.machine_load,
            "num_cores": num_cores(),
            "capacity": None if self.capacity is None else asdict(self.capacity),
            "offers": {name: asdict(offer) for name, offer in self.offers.items()},
            "contenders": dict(SAID),
            "figures": self.runs,
        }


async def compare(
    setting: Comparison, names: Sequence[str], load: ComparedLoad, json: Path | None
) -> int:
    """Run the contenders and print a table a regime; return 1 where a request failed."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    found = VllmRuns(time.strftime("%Y-%m-%d %H:%M:%S"), os.getloadavg()[0])
    console.print(f"the machine's load is {found.machine_load:.1f} on {num_cores()} cores")
    num_failed = 0
    try:
        for name in names:
            num_failed += await _run(setting, name, load, found, console)
            write_json(json, found.packed())
    finally:  # what is known stays known if a later contender is stopped
        _print(console, found)
    return 1 if num_failed else 0


async def _run(
    setting: Comparison, name: str, load: ComparedLoad, found: VllmRuns, console: Console
) -> int:
    """Run one contender under all regimes; return how many of its requests failed."""
    folder = setting.log_dir / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    console.print(f"{name} ({SAID[name]}): starting, logs in {folder}/", markup=False)
    contender, num_failed = CONTENDERS[name](setting, folder), 0
    try:
        async with asyncio.timeout(START):
            url = await contender.__aenter__()
    except TimeoutError:
        message = f"{name} does not serve after {START:g} s: see {folder}/"
        raise HeadwayError(Code.UNAVAILABLE, message) from None
    try:
        await _prepare(setting, url, load, found, console)
        for regime, offer in found.offers.items():
            model = Path(setting.model).name
            plan = offer.plan(model, load.seed, load.max_tokens)
            requests = await replayed(url, plan, within=offer.seconds + PATIENCE)
            num_failed += print_failures(console, f"{name}, {regime}", requests)
            assert found.capacity is not None
            figures = figures_of(requests, found.capacity.alone, load.most_slowdown)
            found.runs.setdefault(regime, {})[name] = figures
    finally:
        await contender.__aexit__(None, None, None)
    return num_failed


async def _prepare(
    setting: Comparison, url: str, load: ComparedLoad, found: VllmRuns, console: Console
) -> None:
    """Warm a contender up; the first one's capacity sets the load of all."""
    model, places = Path(setting.model).name, setting.limits.max_running
    if found.capacity is None:
        numbers = (places, load.num_warm_up, load.seed, load.max_tokens)
        found.capacity = await warm_up.warm_up(url, model, *numbers)
        console.print(f"  {found.capacity}")
        for regime in load.regimes:
            offer = Offer.of(regime, found.capacity.requests_per_s, load.bounds)
            found.offers[regime.name] = offer
            console.print(f"  {regime.name}: {offer}")
        return
    rng = random.Random(f"warm {load.seed}")
    plan: Plan = unread(mix(model, 4 * places, rng, load.max_tokens))
    await looped(url, plan, 2 * places, _WARM_SECONDS, _WARM_PATIENCE)


def _print(console: Console, found: VllmRuns) -> None:
    for regime, runs in found.runs.items():
        title = f"{regime}: {found.offers[regime].num_requests} requests each"
        rows = cells(runs, number)
        table = make_table(("", *runs), rows, title=title, title_justify="left", box=box.HEAVY_HEAD)
        console.print(table)
