"""State of the scheduler: live requests, the last ended ones, and pending actions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from headway.cluster import WorkerInfo
from headway.core.scheduler.costs import PoolCosts
from headway.core.scheduler.events import (
    Decision,
    Learned,
    Note,
    Persist,
    SchedulerAction,
    SendToGateway,
    SendToWorker,
)
from headway.core.scheduler.places import Tracked
from headway.core.scheduler.settings import SchedulerSettings
from headway.cost.velocity import LimitsInForce
from headway.messages import (
    Lost,
    Order,
    Rejected,
    ToGateway,
)
from headway.request import StreamKey


@dataclass(slots=True)
class Counters:
    """Counts since this leader was elected."""

    num_relocations: int = 0


Answer = Rejected | Lost | None
"""The answer to a repeat of an ended attempt; None if its tokens were the answer."""


class SchedulerState:
    """The live requests by key, the ended ones, and the actions of the current event."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.counters = Counters()
        self.explains = True
        """False if nobody keeps decisions, so that none are written down."""
        self.decisions: deque[Decision] = deque(maxlen=settings.num_decisions_kept)
        self.tracked: dict[StreamKey, Tracked] = {}
        self.gateways: dict[str, None] = {}
        """Gateways that are connected."""
        self.fencing_token = 0
        self._attempts: dict[tuple[str, str], dict[StreamKey, None]] = {}
        self._ended: dict[StreamKey, Answer] = {}
        self._actions: list[SchedulerAction] = []
        self._changed: dict[StreamKey, None] = {}
        self._learned: dict[str, Learned] = {}
        self.gammas: dict[str, float] = {}
        self.costs = PoolCosts(settings)
        self.limits = LimitsInForce(settings.limits)
        self.restricted: dict[StreamKey, Collection[str]] = {}
        """The workers that a live request may go to, where those are not all."""
        self.num_restrictions = 0
        """Times that one was set or lifted."""
        self._num_dispatches = 0

    def next_dispatch_id(self) -> int:
        """Return an id unique over all leaders: the token's last 32 bits above a counter of 32."""
        self._num_dispatches += 1
        return (self.fencing_token & 0xFFFFFFFF) << 32 | self._num_dispatches

    # --- requests ---------------------------------------------------------------------

    def track(self, entry: Tracked) -> None:
        """Add a new live attempt."""
        self.tracked[entry.key] = entry
        self._attempts.setdefault(_family(entry), {})[entry.key] = None
        self.changed(entry.key)

    def others(self, entry: Tracked) -> list[Tracked]:
        """Return other live attempts at the same request."""
        keys = self._attempts.get(_family(entry), {})
        return [self.tracked[key] for key in keys if key != entry.key]

    def end(self, key: StreamKey, answer: Answer = None) -> None:
        """End an attempt; a later repeat is answered and not run."""
        entry = self.tracked.pop(key, None)
        if entry is not None:
            keys = self._attempts[_family(entry)]
            del keys[key]
            if not keys:
                del self._attempts[_family(entry)]
            self.changed(key)
        self.restricted.pop(key, None)
        self._ended.pop(key, None)
        self._ended[key] = answer
        if len(self._ended) > self.settings.num_keys_remembered:
            del self._ended[next(iter(self._ended))]

    def has_ended(self, key: StreamKey) -> bool:
        """Return whether the attempt is known to be over."""
        return key in self._ended

    def answer_again(self, key: StreamKey, is_reached: Callable[[str], bool]) -> None:
        """Repeat the answer to an ended attempt, whose gateway may have missed the first one.

        One that was answered by its tokens is lost: its gateway still lacks the end, because it was
        away when another worker took the request, and takes tokens only from workers it knows.
        A process that was lost then may be reached now.
        """
        answer = self._ended[key] or Lost((key,), "it has ended, and its last tokens are not here")
        if isinstance(answer, Lost) and answer.process_id and is_reached(answer.process_id):
            answer = replace(answer, died=False)
        self.tell_gateway(key.gateway_id, answer)

    # --- records for the next leader --------------------------------------------------

    def changed(self, key: StreamKey) -> None:
        """Note that the saved record of this request is outdated."""
        if self.settings.persists:
            self._changed[key] = None

    def learn(self, learned: Learned) -> None:
        """Save measurements that the next leader continues from."""
        self._learned[learned.model] = learned

    def _persist(self) -> Persist:
        alive = [(key, self.tracked.get(key)) for key in self._changed]
        persist = Persist(
            tuple([entry.saved() for _, entry in alive if entry is not None]),
            tuple([key for key, entry in alive if entry is None]),
            tuple(self._learned.values()),
        )
        self._changed.clear()
        self._learned.clear()
        return persist

    # --- actions ----------------------------------------------------------------------

    def tell_worker(self, worker_id: str, message: Order) -> None:
        """Send a message to a worker."""
        self._actions.append(SendToWorker(worker_id, message))

    def tell_gateway(self, gateway_id: str, message: ToGateway) -> None:
        """Send a message to a gateway."""
        self._actions.append(SendToGateway(gateway_id, message))

    def reject(self, rejected: Rejected) -> None:
        """Refuse a request."""
        self.end(rejected.key, rejected)
        self.tell_gateway(rejected.key.gateway_id, rejected)

    def lose(self, keys: Iterable[StreamKey], reason: str) -> None:
        """End requests that a worker has lost; each gateway gets one message for all of its own."""
        self._lose(keys, Lost((), reason), ())

    def lose_process(self, keys: Iterable[StreamKey], reason: str, info: WorkerInfo) -> None:
        """End requests that a worker's process had, which has died or cannot be reached.

        Every gateway hears of a process that has a name: it may have given up its requests there.
        """
        lost = Lost((), reason, died=True, process_id=info.process_id, worker_id=info.worker_id)
        self._lose(keys, lost, self.gateways if info.process_id else ())

    def _lose(self, keys: Iterable[StreamKey], lost: Lost, gateways: Iterable[str]) -> None:
        by_gateway: dict[str, list[StreamKey]] = {gateway_id: [] for gateway_id in gateways}
        for key in keys:
            self.end(key, replace(lost, keys=(key,)))
            by_gateway.setdefault(key.gateway_id, []).append(key)
        for gateway_id, own in by_gateway.items():
            self.tell_gateway(gateway_id, replace(lost, keys=tuple(own)))

    def note(self, event: str, **fields: Any) -> None:
        """Add an entry to the log."""
        self._actions.append(Note(event, **fields))

    def explain(self, decision: Decision) -> None:
        """Keep a decision and publish it."""
        self.decisions.append(decision)
        self._actions.append(decision)

    def take_actions(self) -> list[SchedulerAction]:
        """Return the actions of this event, records for the next leader first."""
        actions, self._actions = self._actions, []
        if self._changed or self._learned:
            actions.insert(0, self._persist())
        return actions


def _family(entry: Tracked) -> tuple[str, str]:
    return entry.key.gateway_id, entry.request_id
