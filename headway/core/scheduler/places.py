"""The places of live requests; only ``books`` changes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from headway.blocks import BlockHash
from headway.cluster import UnitId
from headway.core.scheduler.events import SavedRequest
from headway.cost.buckets import Buckets
from headway.messages import Placed
from headway.policies.dispatch.prefix_hits import NO_HIT, Hit
from headway.request import Request, StreamKey
from headway.service_class import ServiceClass

_BUCKETS = Buckets()


@dataclass(frozen=True, slots=True)
class InWindow:
    """A request in the window of its model, or at its door."""

    left_over: bool = False  # by an earlier dispatch cycle


@dataclass(frozen=True, slots=True)
class OnUnit:
    """A request at a unit, or on the way to it by a dispatch."""

    unit: UnitId
    adopted: bool = False  # a report says so; no dispatch of this leader put it there
    decoding: bool = False  # as far as known: it can move


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A request without a decode unit; its worker holds the KV."""

    unit: UnitId
    adopted: bool = False
    num_failed: int = 0  # handoffs
    num_refused: int = 0
    """Handoffs that failed at a full unit, which then was left out until its next report."""
    rests: Mapping[UnitId, float] = field(default_factory=dict)
    """Units that failed a handoff, and the instants until which they are left out."""


@dataclass(frozen=True, slots=True)
class Moving:
    """A request on its way from ``origin`` to ``target``; a failed move leaves it at ``origin``.

    It runs during the move if ``origin`` is an ``OnUnit``. ``origin`` is None if an earlier leader
    ordered the move and its source has not reported yet.
    """

    origin: OnUnit | Prefilled | None
    target: UnitId


Place = InWindow | OnUnit | Prefilled | Moving


@dataclass(slots=True, eq=False)
class Tracked:
    """One live attempt."""

    key: StreamKey
    request_id: str
    model: str
    place: Place
    request: Request | None  # None if known only from a worker's report
    num_tokens: int
    since: float  # when it was submitted, adopted or prefilled
    distrusted: set[str] = field(default_factory=set)
    """Workers that stopped a copy, or whose stream broke while one was moving there. A report of
    its arrival may be of a copy that is gone."""
    reporters: set[str] = field(default_factory=set)
    """Workers that have reported it to this leader."""
    moved_at: float = -inf
    is_answering: bool = False  # its reasoning has ended
    predicted_total: float = 0.0  # tokens at its end, as its prefill worker predicted
    cycle: int = -1  # of the window, when it entered
    last_placed: Placed | None = None  # the last word to its gateway on where it is
    rule: str = ""  # that dispatched it
    waited_us: int = 0  # until it was dispatched, or placed for decoding
    charged: float = 0.0  # weighted tokens that its tenant was charged for it
    is_settled: bool = False  # charged as its worker has reported
    waypoint_names: Sequence[BlockHash] | None = None
    """Names of its prompt's waypoints, once asked for."""
    hit: Hit = NO_HIT
    """What its unit was believed to hold of it when it was dispatched."""

    def chosen(self, now: float) -> None:
        """Note how long it has waited for the choice of its unit."""
        self.waited_us = max(1, round((now - self.since) * 1e6))

    @property
    def num_owed_tokens(self) -> int:
        """Tokens that its unit computes for it, as believed when it was dispatched."""
        return max(0, self.num_tokens - self.hit.num_tokens)

    @property
    def at(self) -> UnitId | None:
        """The unit that has it, or that a dispatch sends it to."""
        place = self.place
        held = place.origin if isinstance(place, Moving) else place
        return held.unit if isinstance(held, (OnUnit, Prefilled)) else None

    @property
    def worker_id(self) -> str:
        """The worker of that unit; "" for none."""
        at = self.at
        return at.worker_id if at is not None else ""

    @property
    def target(self) -> UnitId | None:
        """The unit that it moves to."""
        return self.place.target if isinstance(self.place, Moving) else None

    @property
    def is_relocating(self) -> bool:
        """True if it runs while it moves."""
        return isinstance(self.place, Moving) and isinstance(self.place.origin, OnUnit)

    @property
    def is_decoding(self) -> bool:
        """True if it is known to decode on a unit and does not move."""
        return isinstance(self.place, OnUnit) and self.place.decoding

    def concerns(self, worker_id: str) -> bool:
        """Return whether it is on this worker, or moves there."""
        target = self.target
        return worker_id in (self.worker_id, target.worker_id if target is not None else None)

    def is_arriving_at(self, worker_id: str) -> bool:
        """Return whether it moves to this worker from a source that has not reported."""
        place = self.place
        if not isinstance(place, Moving) or place.origin is not None:
            return False
        return place.target.worker_id == worker_id

    @property
    def arrival_at(self) -> float:
        """Arrival at the gateway if known, in seconds since the epoch."""
        return self.request.arrival_at if self.request is not None else self.since

    @property
    def opens_answer(self) -> bool:
        """True if a reader waits for its first token."""
        return self.request is not None and self.request.is_read and not self.request.reasons

    @property
    def passes_others(self) -> bool:
        """True if what yields to a reader's first token yields to it: its own class does not."""
        return self.opens_answer and not self.yields

    @property
    def tenant(self) -> str:
        """The name that it counts for."""
        return self.request.standing.tenant if self.request is not None else ""

    @property
    def share(self) -> float:
        """The tenant's share, relative to others'."""
        return self.request.standing.share if self.request is not None else 1.0

    @property
    def service(self) -> ServiceClass | None:
        """The class of its promise."""
        return self.request.standing.service if self.request is not None else None

    @property
    def yields(self) -> bool:
        """True if it takes what others leave."""
        return self.request is not None and self.request.standing.yields

    @property
    def due_at(self) -> float:
        """Instant at which its first token is due; without a class, its arrival."""
        service = self.service
        return self.arrival_at + (service.ttft or 0.0 if service is not None else 0.0)

    @property
    def expected_output(self) -> float:
        """Output tokens that its gateway expects of it; 0 if unknown."""
        return self.request.predicted_output_tokens if self.request is not None else 0.0

    @property
    def session_id(self) -> str:
        """The client's name for its conversation; "" for none."""
        return self.request.session_id if self.request is not None else ""

    @property
    def is_burst(self) -> bool:
        """True if its gateway labelled it as part of a burst."""
        return self.request is not None and self.request.is_burst

    @property
    def num_growth_tokens(self) -> int:
        """Tokens to reserve for growth: at least one, more if its end is predicted soon."""
        if self.request is None or self.request.predicted_output_tokens <= 0:
            return 1
        total = len(self.request.prompt_token_ids) + self.request.predicted_output_tokens
        return max(1, min(int(total) - self.num_tokens, 256))

    @property
    def predicted_remaining(self) -> float:
        """Output tokens still to come; 0 if unknown, or if it has outlived the prediction."""
        return max(0.0, self.predicted_total - self.num_tokens)

    @property
    def bucket(self) -> int:
        """The bucket of its prompt and predicted output."""
        if self.request is None:
            return _BUCKETS.of(self.num_tokens, 0)
        request = self.request
        return _BUCKETS.of(len(request.prompt_token_ids), request.predicted_output_tokens)

    @property
    def barred(self) -> Collection[UnitId]:
        """Units that recently failed its handoff."""
        return self.place.rests if isinstance(self.place, Prefilled) else ()

    def saved(self) -> SavedRequest:
        """Return what the next leader needs to know."""
        return SavedRequest(
            self.key,
            self.worker_id,
            self.cycle,
            self.since,
            self.moved_at,
            self.target,
            self.is_relocating,
        )
