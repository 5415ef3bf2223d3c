"""The loads that a worker's units will have: as it last reported, with what has come since."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from headway.messages import LoadReport
from headway.policies.placement.ahead import Floats, LoadAhead
from headway.policies.rescheduling import Horizon
from headway.request import StreamKey


class _Coming(NamedTuple):
    unit: int
    num_tokens: int
    remaining: float


class Foresight:
    """One worker's predicted loads."""

    def __init__(self) -> None:
        self._reported: list[Floats] = []
        self._since: dict[StreamKey, _Coming] = {}

    def report(self, report: LoadReport, coming: Collection[StreamKey]) -> None:
        """Take a report; of requests ordered there, only those still ``coming`` are not in it."""
        self._reported = [np.asarray(running.future) for running in report.units]
        reported = {key for running in report.units for key in running.keys}
        self._since = {
            key: each for key, each in self._since.items() if key in coming and key not in reported
        }

    def add(self, key: StreamKey, unit: int, num_tokens: int, remaining: float) -> None:
        """Add a request that is ordered there."""
        self._since[key] = _Coming(unit, num_tokens, remaining)

    def drop(self, key: StreamKey) -> None:
        """Drop a request that does not come, or has ended."""
        self._since.pop(key, None)

    def of(self, unit: int, num_tokens: int, horizon: Horizon) -> LoadAhead:
        """Return a unit's load over the horizon; ``num_tokens`` is its load now.

        Without a report over that horizon the present load stands for all steps.
        """
        ahead = LoadAhead(np.full(horizon.num_steps + 1, float(num_tokens)), horizon.step_tokens)
        reported = self._reported[unit] if unit < len(self._reported) else ()
        if len(reported) == horizon.num_steps:
            ahead.loads[1:] = reported
            for each in self._since.values():
                if each.unit == unit:
                    ahead.loads[1:] += ahead.trace(each.num_tokens, each.remaining)[1:]
        return ahead
