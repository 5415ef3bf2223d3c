"""Shrinking: a failing history without the requests and faults that it does not need.

Delta debugging (Zeller and Hildebrandt, 2002): drop ever smaller parts as long as the history still
breaks one of the same promises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from proof.vopr.history import History, run
from proof.vopr.scenario import Asking, PlannedFault, SeedScenario

T = TypeVar("T")
MOST_RUNS = 400


def shrink(history: History, most_runs: int = MOST_RUNS) -> History:
    """Return the smallest failing history found within so many runs."""
    search = _Search(history, most_runs)
    search.drop_items()
    search.simplify()
    return search.best


class _Search:
    """The smallest failing history so far."""

    def __init__(self, history: History, most_runs: int) -> None:
        self.best = history
        self._rules = history.rules
        self._num_left = most_runs

    def drop_items(self) -> None:
        """Drop requests and faults."""
        items: list[Asking | PlannedFault] = [
            *self.best.scenario.requests,
            *self.best.scenario.faults,
        ]
        base = self.best.scenario
        smallest(items, lambda kept: self._fails(_with(base, kept)))

    def simplify(self) -> None:
        """Try a cluster without extras, and clocks that agree."""
        for change in (
            {"skews": ()},
            {"num_gateways": 1},
            {"num_schedulers": 1},
            {"preset": "vllm-like"},
        ):
            self._fails(replace(self.best.scenario, **change))
        for name in ("num_units", "host_blocks", "runs_ahead", "swaps_beside", "predict_every"):
            shape = self.best.scenario.shape
            plain = type(shape)()
            changed = replace(shape, **{name: getattr(plain, name)})
            self._fails(replace(self.best.scenario, shape=changed))

    def _fails(self, scenario: SeedScenario) -> bool:
        if self._num_left <= 0:
            return False
        self._num_left -= 1
        history = run(scenario)
        if not history.rules & self._rules:
            return False
        self.best = history
        return True


def _with(base: SeedScenario, kept: Sequence[Asking | PlannedFault]) -> SeedScenario:
    requests = tuple(each for each in kept if isinstance(each, Asking))
    faults = tuple(each for each in kept if isinstance(each, PlannedFault))
    return replace(base, requests=requests, faults=faults)


def smallest(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """Return a part of the items that still fails and of which nothing can be dropped alone."""
    size = max(1, len(items) // 2)
    while items:
        for start in range(0, len(items), size):
            kept = [*items[:start], *items[start + size :]]
            if fails(kept):
                items = kept
                break
        else:
            if size == 1:
                break
            size = max(1, size // 2)
    return items
