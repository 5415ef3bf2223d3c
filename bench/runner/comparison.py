"""The one loop of live comparisons: systems × regimes × seeds, each offered the same requests.

A comparison declares what is started, what is offered and what a run measures
(:class:`LiveComparison`). The order, pairs, verdicts, tables and the file are the same for all.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any, TypeVar

from bench.runner.offered import print_failures
from bench.runner.paired import PairedSamples
from bench.runner.started import LiveTarget
from bench.runner.table import Columns, print_columns, print_rule
from bench.runner.verdict import FIGURES, ComparedFigure, Figure, compared
from bench.serve.replay import ReplayedRequest
from headway.errors import HeadwayError
from results.output import make_console, num_cores, write_json

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Measurement:
    """The measurement of one run: figures by name, its requests, and what else the file holds."""

    figures: Mapping[str, float]
    requests: Sequence[ReplayedRequest] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


class LiveComparison:
    """A declaration of what is compared: the first system, and the others with it."""

    systems: Sequence[str]
    regimes: Sequence[str] = ("",)
    figures: Sequence[Figure] = FIGURES
    optional: Collection[str] = ()
    """Systems that may be left out, with the reason, where they stay up and fail."""
    stay_up = False
    """True where all systems serve at once, each offered a seed's load in its turn."""
    stopping: asyncio.Event | None = None
    """Set by SIGINT while a run is measured, where a run can be cut short; None: it is lost."""
    takes_median = False
    """True for medians over the seeds, False for means."""
    width = 140

    def __init__(self) -> None:
        self.console = make_console(self.width)
        self.left_out: dict[str, str] = {}

    def serve(self, system: str) -> AbstractAsyncContextManager[LiveTarget]:
        """Start a system, and stop it at the end."""
        raise NotImplementedError

    async def begin(self, seed: int, order: Sequence[str]) -> None:
        """Prepare a seed before the first of its systems is started."""

    async def prepare(self, system: str, target: LiveTarget, seed: int) -> None:
        """Warm up a system that has just been started."""

    async def measure(self, system: str, target: LiveTarget, regime: str, seed: int) -> Measurement:
        """Offer a regime's requests of a seed to a system, and return what came of it."""
        raise NotImplementedError

    def samples(self, seed: int, before: Measurement, after: Measurement) -> PairedSamples:
        """Return the same requests' values under two systems; {}: figures are all that is known."""
        return {}

    def title(self, regime: str, runs: Mapping[int, Measurement]) -> str:
        """Return the line above a regime's table; ``runs``: the first system's, by seed."""
        return ", ".join(filter(None, (regime, f"seeds: {len(runs)}")))

    def packed(self) -> Mapping[str, Any]:
        """Return what the file has beside runs and verdicts."""
        return {}


class LiveRuns:
    """The runs of a comparison so far, by regime, system and seed."""

    def __init__(self, what: LiveComparison) -> None:
        self._what = what
        self._measured: dict[str, dict[str, dict[int, Measurement]]] = {}
        self._rows: list[dict[str, Any]] = []
        self._has_failed = False
        self.is_stopped = False

    def add(self, regime: str, system: str, seed: int, measured: Measurement) -> None:
        """Keep a run that has just ended."""
        self._measured.setdefault(regime, {}).setdefault(system, {})[seed] = measured
        self._has_failed |= any(each.error_kind for each in measured.requests)
        row = {"regime": regime, "system": system, "seed": seed, "load": os.getloadavg()[0]}
        self._rows.append({**row, "figures": dict(measured.figures), **measured.details})

    @property
    def status(self) -> int:
        """The exit status: 130 for a comparison that was stopped, 1 where a request failed."""
        return 130 if self.is_stopped else int(self._has_failed)

    def in_pairs(self, regime: str) -> Mapping[str, Mapping[int, Measurement]]:
        """Return the runs by system and seed, of the seeds that every system with a run has."""
        names = (name for name in self._what.systems if name not in self._what.left_out)
        measured = self._measured[regime]
        runs = {name: measured[name] for name in names if name in measured}
        seeds = sorted(set.intersection(*map(set, runs.values())))
        return {name: {seed: of[seed] for seed in seeds} for name, of in runs.items()}

    def changes(self, regime: str) -> Mapping[str, Sequence[ComparedFigure]]:
        """Return every further system's figures beside the first one's."""
        (_, ones), *others = self.in_pairs(regime).items()
        return {
            name: compared(
                [each.figures for each in ones.values()],
                [each.figures for each in theirs.values()],
                self._what.figures,
                [self._what.samples(seed, ones[seed], theirs[seed]) for seed in ones],
            )
            for name, theirs in others
        }

    def packed(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "num_cores": num_cores(),
            "left_out": self._what.left_out,
            **self._what.packed(),
            "runs": self._rows,
            "verdicts": {
                regime: {
                    name: [row.packed() for row in rows]
                    for name, rows in self.changes(regime).items()
                }
                for regime in self._measured
            },
        }

    def print(self) -> None:
        """Print a table a regime, and how the verdicts come about where there are some."""
        console, is_judged = self._what.console, False
        for regime in self._measured:
            runs = self.in_pairs(regime)
            if not (first := next(iter(runs.values()))):
                continue
            columns: Columns = {
                name: [each.figures for each in of.values()] for name, of in runs.items()
            }
            title = self._what.title(regime, first)
            changes, middle = self.changes(regime), median if self._what.takes_median else fmean
            is_judged |= print_columns(console, title, columns, self._what.figures, changes, middle)
        for name, why in self._what.left_out.items():
            console.print(f"left out: {name}: {why}", markup=False, soft_wrap=True)
        if is_judged:
            print_rule(console)


def order_of(contenders: Sequence[_T], place: int) -> Sequence[_T]:
    """Return the order of a pair: every second one is reversed, so that drift cancels out."""
    return list(reversed(contenders)) if place % 2 else contenders


async def compare(what: LiveComparison, seeds: Sequence[int], json: Path | None) -> LiveRuns:
    """Run all systems under every seed, and print; what is known stays known if a later one fails.

    ``json`` is written after each run.
    """
    runs = LiveRuns(what)
    began = {"began_at": time.strftime("%Y-%m-%d %H:%M:%S"), "machine_load": os.getloadavg()[0]}
    what.console.print(f"the machine's load is {began['machine_load']:.1f} on {num_cores()} cores")

    async def run(system: str, target: LiveTarget, regime: str, seed: int) -> None:
        with _stopped_by_a_user(what.stopping):
            measured = await what.measure(system, target, regime, seed)
        runs.add(regime, system, seed, measured)
        name = ", ".join(filter(None, (f"seed {seed}", system, regime)))
        print_failures(what.console, name, measured.requests)
        write_json(json, {**began, **runs.packed()})
        if what.stopping is not None and what.stopping.is_set():
            raise _StoppedError

    try:
        async with AsyncExitStack() as stack:
            up: dict[str, LiveTarget] = {}
            for name in what.systems if what.stay_up else ():
                with _left_out_if_it_fails(what, name):
                    target = await stack.enter_async_context(what.serve(name))
                    await what.prepare(name, target, seeds[0])
                    up[name] = target
            for place, seed in enumerate(seeds):
                order = order_of(what.systems, place)
                await what.begin(seed, order)
                if up:  # a machine that changes hits all systems of a regime alike
                    for regime, name in itertools.product(what.regimes, order):
                        if name not in what.left_out:
                            with _left_out_if_it_fails(what, name):
                                await run(name, up[name], regime, seed)
                    continue
                for name in order:
                    async with what.serve(name) as target:
                        await what.prepare(name, target, seed)
                        for regime in what.regimes:
                            await run(name, target, regime, seed)
    except _StoppedError:
        runs.is_stopped = True
    finally:
        runs.print()
    return runs


@contextmanager
def _left_out_if_it_fails(what: LiveComparison, system: str) -> Iterator[None]:
    """Leave an optional system out from here on, and what it has measured, where it fails."""
    try:
        yield
    except HeadwayError as error:
        if system not in what.optional:
            raise
        what.left_out[system] = error.message


class _StoppedError(Exception):
    """A user has stopped the comparison."""


@contextmanager
def _stopped_by_a_user(stopping: asyncio.Event | None) -> Iterator[None]:
    """Have SIGINT set the event meanwhile, if there is one."""
    loop = asyncio.get_running_loop()
    if stopping is not None:
        loop.add_signal_handler(signal.SIGINT, stopping.set)
    try:
        yield
    finally:
        if stopping is not None:
            loop.remove_signal_handler(signal.SIGINT)
