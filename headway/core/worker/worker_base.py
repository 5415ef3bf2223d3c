"""The base of both kinds of worker cores: views for the shell, and the dispatches they know."""

from __future__ import annotations

from headway.cluster import UnitLoad, WorkerInfo
from headway.core.worker.settings import WorkerSettings
from headway.core.worker.state import WorkerState
from headway.core.worker.unit import PrefixCounts


class WorkerBase:
    """A worker's state as its shell and metrics see it."""

    def __init__(self, settings: WorkerSettings, state: WorkerState) -> None:
        self.settings = settings
        self._state = state
        self._seen_dispatches: dict[int, None] = {}

    @property
    def info(self) -> WorkerInfo:
        """The worker's description; its role may change."""
        return self._state.info

    @property
    def num_held(self) -> int:
        """Number of requests that this worker has not released."""
        return sum(len(unit.sequences) for unit in self._state.units)

    @property
    def loads(self) -> tuple[UnitLoad, ...]:
        """The current load of every unit."""
        return self._state.loads

    @property
    def num_requests(self) -> tuple[tuple[int, int], ...]:
        """Every unit's requests that run, and those that wait."""
        return self._state.num_requests

    @property
    def adapters(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The adapters of requests that run, and of those that wait."""
        return self._state.adapters

    @property
    def prefix_counts(self) -> PrefixCounts:
        """Prefix cache statistics since the start, as far as the engine tells."""
        counts = [unit.prefix_counts for unit in self._state.units]
        return PrefixCounts(
            sum(c.num_asked_tokens for c in counts),
            sum(c.num_hit_tokens for c in counts),
            sum(c.num_host_hit_tokens for c in counts),
        )

    def _is_new(self, dispatch_id: int) -> bool:
        """Return whether a dispatch has not come before, and remember it: a repeat does nothing."""
        if dispatch_id in self._seen_dispatches:
            return False
        self._seen_dispatches[dispatch_id] = None
        if len(self._seen_dispatches) > self.settings.num_dispatches_remembered:
            del self._seen_dispatches[next(iter(self._seen_dispatches))]
        return True
