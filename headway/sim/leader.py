"""The scheduler's leader on virtual time, and the standby that follows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from headway.core.scheduler.core import SchedulerCore
from headway.core.scheduler.events import (
    Elected,
    Learned,
    Persist,
    SavedRequest,
    SchedulerAction,
    SchedulerEvent,
)
from headway.core.scheduler.settings import SchedulerSettings
from headway.request import StreamKey
from headway.sim.kernel import Kernel
from headway.sim.node import Node


class SimLeader:
    """The scheduler that leads, term after term, and the journal that the next one reads.

    Messages that are on their way when a leader dies are lost.
    """

    def __init__(
        self,
        kernel: Kernel,
        settings: SchedulerSettings,
        perform: Callable[[SchedulerAction], None],
    ) -> None:
        self._kernel = kernel
        self._settings = settings
        self._perform = perform
        self._saved: dict[StreamKey, SavedRequest] = {}
        self._learned: dict[str, Learned] = {}
        self.leads = self.keeps_decisions = False
        self.term = 0
        self._begin()

    def _begin(self) -> None:
        self.core = SchedulerCore(self._settings)
        self.core.keep_decisions(self.keeps_decisions)
        self._node: Node[SchedulerEvent, SchedulerAction] = Node(self._kernel, self.core, self._act)

    def keep_decisions(self, keeps: bool) -> None:
        """Have decisions written down in this term and the next ones, or not."""
        self.keeps_decisions = keeps
        self.core.keep_decisions(keeps)

    def elect(self, worker_ids: Sequence[str]) -> None:
        """Begin the next term; the workers are members that have not reported yet."""
        if self.term:
            self._begin()
        self.term += 1
        self.leads = True
        saved, learned = tuple(self._saved.values()), tuple(self._learned.values())
        self.post(Elected(self.term, tuple(worker_ids), saved, learned))

    def die(self) -> None:
        """End the leader's process."""
        self._node.stop()
        self.leads = False

    def post(self, event: SchedulerEvent) -> None:
        """Tell the leader now, if there is one."""
        if self.leads:
            self._node.post(event)

    def arrival(self, event: SchedulerEvent) -> Callable[[], None]:
        """Return what tells the leader of now, if it still leads when that is called."""
        return partial(self._arrived, self.term, event)

    def _arrived(self, term: int, event: SchedulerEvent) -> None:
        if term == self.term:
            self.post(event)

    def _act(self, action: SchedulerAction) -> None:
        if isinstance(action, Persist):
            self._saved.update((each.key, each) for each in action.saved)
            self._learned.update((each.model, each) for each in action.learned)
            for key in action.ended:
                self._saved.pop(key, None)
        else:
            self._perform(action)
