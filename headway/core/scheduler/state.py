"""What the scheduler knows of requests: those alive, and the last ones that ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Any

from headway.cluster import UnitId
from headway.core.scheduler.events import (
    Decision,
    Learned,
    Note,
    Persist,
    SavedRequest,
    SchedulerAction,
    SendToGateway,
    SendToWorker,
)
from headway.core.scheduler.settings import SchedulerSettings
from headway.cost.buckets import Buckets
from headway.messages import (
    Lost,
    Order,
    Rejected,
    ToGateway,
)
from headway.request import Request, StreamKey


class Stage(Enum):
    """Where a request stands."""

    WAITING = "waiting"  # in the window
    PLACED = "placed"  # at its worker, or on the way to it
    PREFILLED = "prefilled"  # its worker holds the KV, no decode unit has been found
    MOVING = "moving"  # its worker has been told to hand it to ``target``


@dataclass(slots=True, eq=False)
class Tracked:
    """One live attempt. ``request`` is None when only a worker's snapshot told of it.

    ``adopted``: a snapshot says that it is at ``worker_id``, no dispatch of ours put it there.
    ``distrusted``: workers that stopped a copy, or whose stream broke while it was on its way
    there: news of its arrival there may be of a copy that is no more.
    """

    key: StreamKey
    request_id: str
    model: str
    stage: Stage
    request: Request | None
    num_tokens: int
    since: float
    worker_id: str = ""
    unit: int = 0
    target: UnitId | None = None
    distrusted: set[str] = field(default_factory=set)
    adopted: bool = False
    rests: dict[UnitId, float] = field(default_factory=dict)
    num_failed_handoffs: int = 0
    relocating: bool = False  # it runs, and moves: where that fails it runs on where it is
    moved_at: float = -inf
    is_decoding: bool = False  # as far as is known: it can move
    is_answering: bool = False  # its reasoning has ended
    left_over: bool = False
    cycle: int = -1  # of the window, when it entered
    beginnings: tuple[int, ...] | None = None  # of its prompt, once they have been asked for

    def is_arriving_at(self, worker_id: str) -> bool:
        """Whether its KV is on the way there from a worker that has not been heard."""
        is_target = self.target is not None and self.target.worker_id == worker_id
        return is_target and not self.worker_id

    @property
    def arrival_at(self) -> float:
        """Arrival at the gateway where it is known, seconds since the epoch."""
        return self.request.arrival_at if self.request is not None else self.since

    @property
    def is_burst(self) -> bool:
        """Whether its gateway labelled it so."""
        return self.request is not None and self.request.is_burst

    @property
    def num_growth_tokens(self) -> int:
        """Room for at least one more token, more where an end is predicted soon after."""
        if self.request is None or self.request.predicted_output_tokens <= 0:
            return 1
        total = len(self.request.prompt_token_ids) + self.request.predicted_output_tokens
        return max(1, min(int(total) - self.num_tokens, 256))

    @property
    def bucket(self) -> int:
        """Its kind by prompt and predicted output."""
        if self.request is None:
            return _BUCKETS.of(self.num_tokens, 0)
        request = self.request
        return _BUCKETS.of(len(request.prompt_token_ids), request.predicted_output_tokens)

    @property
    def barred(self) -> Collection[UnitId]:
        """Units that failed its handoff a moment ago."""
        return self.rests

    def saved(self) -> SavedRequest:
        """What a successor needs to know of it."""
        return SavedRequest(
            self.key,
            self.worker_id,
            self.cycle,
            self.since,
            self.moved_at,
            self.target,
            self.relocating,
        )


@dataclass(slots=True)
class Counters:
    """Since this leader was elected."""

    num_watchdogs: int = 0
    num_handoffs: int = 0
    num_failed_handoffs: int = 0
    num_relocations: int = 0
    num_repeats: int = 0


_BUCKETS = Buckets()

Answer = Rejected | Lost | None
"""What a repeat of an ended attempt is answered with; None: nothing, its tokens told it all."""


class SchedulerState:
    """The live requests by key, the ended ones, and the actions of the event at hand."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.counters = Counters()
        self.decisions: deque[Decision] = deque(maxlen=settings.num_decisions_kept)
        self.tracked: dict[StreamKey, Tracked] = {}
        self.fencing_token = 0
        self._attempts: dict[tuple[str, str], dict[StreamKey, None]] = {}
        self._ended: dict[StreamKey, Answer] = {}
        self._actions: list[SchedulerAction] = []
        self._changed: dict[StreamKey, None] = {}
        self._learned: dict[str, Learned] = {}
        self.gammas: dict[str, float] = {}
        self._num_dispatches = 0

    def next_dispatch_id(self) -> int:
        """Unique over all leaders: the fencing token in the high half, a counter in the low."""
        self._num_dispatches += 1
        return self.fencing_token << 32 | self._num_dispatches

    # --- requests ---------------------------------------------------------------------

    def track(self, entry: Tracked) -> None:
        """A new live attempt."""
        self.tracked[entry.key] = entry
        self._attempts.setdefault(_family(entry), {})[entry.key] = None
        self.changed(entry.key)

    def others(self, entry: Tracked) -> list[Tracked]:
        """Live attempts at the same request."""
        keys = self._attempts.get(_family(entry), {})
        return [self.tracked[key] for key in keys if key != entry.key]

    def end(self, key: StreamKey, answer: Answer = None) -> None:
        """The attempt is over; a later repeat of it is answered and not run."""
        entry = self.tracked.pop(key, None)
        if entry is not None:
            keys = self._attempts[_family(entry)]
            del keys[key]
            if not keys:
                del self._attempts[_family(entry)]
            self.changed(key)
        self._ended.pop(key, None)
        self._ended[key] = answer
        if len(self._ended) > self.settings.num_keys_remembered:
            del self._ended[next(iter(self._ended))]

    def has_ended(self, key: StreamKey) -> bool:
        """Whether the attempt is known to be over."""
        return key in self._ended

    def answer_again(self, key: StreamKey) -> None:
        """A repeat of an ended attempt: its gateway may have missed the answer."""
        answer = self._ended[key]
        if answer is not None:
            self.tell_gateway(key.gateway_id, answer)

    # --- what a successor will read ---------------------------------------------------

    def changed(self, key: StreamKey) -> None:
        """What is written down of this request holds no more."""
        if self.settings.persists:
            self._changed[key] = None

    def learn(self, learned: Learned) -> None:
        """Measurements that a successor goes on with."""
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
        """An order for a worker."""
        self._actions.append(SendToWorker(worker_id, message))

    def tell_gateway(self, gateway_id: str, message: ToGateway) -> None:
        """An answer for a gateway."""
        self._actions.append(SendToGateway(gateway_id, message))

    def reject(self, rejected: Rejected) -> None:
        """The request will not be served."""
        self.end(rejected.key, rejected)
        self.tell_gateway(rejected.key.gateway_id, rejected)

    def lose(self, keys: Iterable[StreamKey], reason: str) -> None:
        """Their worker is gone: each gateway is told once, of all of its requests."""
        by_gateway: dict[str, list[StreamKey]] = {}
        for key in keys:
            self.end(key, Lost((key,), reason))
            by_gateway.setdefault(key.gateway_id, []).append(key)
        for gateway_id, lost in by_gateway.items():
            self.tell_gateway(gateway_id, Lost(tuple(lost), reason))

    def note(self, event: str, **fields: Any) -> None:
        """Something for the log."""
        self._actions.append(Note(event, **fields))

    def explain(self, decision: Decision) -> None:
        """Keep a decision, and show it."""
        self.decisions.append(decision)
        self._actions.append(decision)

    def take_actions(self) -> list[SchedulerAction]:
        """What the event at hand led to; what a successor must know goes before the orders."""
        actions, self._actions = self._actions, []
        if self._changed or self._learned:
            actions.insert(0, self._persist())
        return actions


def _family(entry: Tracked) -> tuple[str, str]:
    return entry.key.gateway_id, entry.request_id
