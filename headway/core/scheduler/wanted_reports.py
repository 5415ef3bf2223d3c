"""What workers report: loads and lengths only where a request has more than one place to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import inf

from headway.core.scheduler.admission import wanted_reports
from headway.core.scheduler.decode import Pool, pool_of
from headway.core.scheduler.instance import Instance
from headway.core.scheduler.state import SchedulerState
from headway.messages import WantedReports


class Wants:
    """Orders that change a worker's reports as units of its pool come and go.

    A hello asks for nothing that a choice alone reads: its sender does not know the pool.
    """

    def __init__(self, state: SchedulerState, instances: Mapping[str, Instance]) -> None:
        self._state = state
        self._instances = instances
        self._has_choice: dict[str, bool] = {}
        self._wants: Mapping[bool, WantedReports] = {
            each: wanted_reports(state.settings, has_choice=each) for each in (False, True)
        }
        """What is asked for where there is no choice, and where there is one."""

    @property
    def _is_constant(self) -> bool:
        return self._wants[False] == self._wants[True]

    def heard(self, worker_id: str) -> None:
        """Note that a worker may have been greeted again."""
        self._has_choice[worker_id] = False

    def forget(self, worker_id: str) -> None:
        """Forget a worker that is gone."""
        self._has_choice.pop(worker_id, None)

    def reads_loads(self, worker_id: str) -> bool:
        """Return False if a worker was told to report no loads; a report may be on its way yet."""
        return (
            self._is_constant
            or self._wants[self._has_choice.get(worker_id, False)].load_interval < inf
        )

    def update(self) -> list[str]:
        """Tell workers of pools that have come to offer a choice, or offer none any more.

        Return those whose last load report nobody reads, and no other replaces.
        """
        if self._is_constant:
            return []
        silent: list[str] = []
        num_units = Counter[Pool]()
        for instance in self._instances.values():
            if instance.takes_decode and instance.info.kv_layout:
                num_units[pool_of(instance)] += instance.info.num_units
        for worker_id, instance in sorted(self._instances.items()):
            has_choice = num_units[pool_of(instance)] > 1
            if not has_choice:
                silent.append(worker_id)
            if self._has_choice.get(worker_id) is not has_choice:
                self._has_choice[worker_id] = has_choice
                self._state.tell_worker(worker_id, self._wants[has_choice])
        return silent
