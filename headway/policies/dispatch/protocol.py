"""What a dispatch policy reads and what it answers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.cluster import Role
from headway.request import StreamKey


@dataclass(frozen=True, slots=True)
class InstanceLoad:
    """One instance that takes prefill work now, as a dispatch policy sees it.

    ``task_depth``: reported prefill tokens not yet computed, plus dispatches on their way; 0 is
    quiescence. ``queued_tokens``: U_flight + R_queued over its units. ``num_outstanding``:
    requests that it was sent and has not let go of; ``num_queued``: those of them that do not
    run yet. ``has_capacity``: whether any unit has C_avail above 0; ``has_room``: free KV blocks.
    ``num_decoding``: B over its units; ``free_tokens``: the longest prompt a unit has blocks for.
    ``kv_tokens``: KV in blocks and in host memory, and what is queued. ``is_on_schedule``: whether
    no reader of its answers waits (PASCAL's t_i).
    """

    worker_id: str
    task_depth: int
    queued_tokens: int
    num_outstanding: int
    num_queued: int
    has_capacity: bool
    has_room: bool
    role: Role = Role.PREFILL
    num_decoding: int = 0
    free_tokens: int = 1 << 62
    kv_tokens: int = 0
    is_on_schedule: bool = True


class Waiting(Protocol):
    """One request of the window, as a dispatch policy sees it."""

    @property
    def key(self) -> StreamKey:
        """Breaks every tie."""

    @property
    def arrival_at(self) -> float:
        """When the client's request reached the gateway, seconds since the epoch."""

    @property
    def num_tokens(self) -> int:
        """Tokens that its prefill has to compute."""

    @property
    def is_burst(self) -> bool:
        """Whether the gateway labelled it as beyond the mean."""


@dataclass(frozen=True, slots=True)
class Turn:
    """An instance that may be given requests now, and the rule that says so.

    ``max_requests``: at most so many, oldest first; None: what fits. ``capped``: whether a unit
    takes a request only while its C_avail is above 0. ``keys``: these requests only; None: any.
    """

    worker_id: str
    rule: str
    max_requests: int | None = None
    capped: bool = True
    keys: Sequence[StreamKey] | None = None


@dataclass(frozen=True, slots=True)
class Expiry:
    """The watchdog gave an instance up: no EndForward ``waited`` seconds after a dispatch."""

    worker_id: str
    dispatch_id: int
    waited: float


class Dispatching(Protocol):
    """When are waiting requests given to an instance, and to which?

    One object serves the instances of one model. Its caller keeps it told of everything below,
    and asks for turns after every event.
    """

    @property
    def interval(self) -> float:
        """Seconds between dispatches; 0 where there is no such thing."""

    @property
    def mean_pass_time(self) -> float:
        """T̄, seconds."""

    @property
    def dispatch_latency(self) -> float:
        """L_net, seconds: a dispatch's measured round trip."""

    @property
    def num_bad_times(self) -> int:
        """Reported pass times that were negative, NaN or infinite, and dropped."""

    def join(self, worker_id: str) -> None:
        """The instance takes prefill work from now on; a repeat does nothing."""

    def leave(self, worker_id: str) -> None:
        """It does not any more; unknown ids are ignored."""

    def dispatched(self, turn: Turn, dispatch_id: int, *, now: float) -> None:
        """The turn was used: a dispatch has been sent."""

    def passed(self, turn: Turn, *, now: float) -> None:
        """The turn could not be used: no waiting request fitted."""

    def acknowledged(self, round_trip: float) -> None:
        """A dispatch was acknowledged this many seconds after it was sent."""

    def recall(self, pass_time: float, latency: float) -> None:
        """T̄ and L_net of an earlier leader, until the first reports of this one."""

    def ended(
        self, worker_id: str, dispatch_ids: Sequence[int], pass_time: float | None, *, now: float
    ) -> None:
        """An EndForward came; ``pass_time`` None: no prefill was in the pass."""

    def expire(self, *, now: float) -> Sequence[Expiry]:
        """Give up on instances that have been silent for too long; each dispatch only once."""

    def turns(
        self,
        loads: Sequence[InstanceLoad],
        num_waiting: int,
        *,
        now: float,
        waiting: Collection[Waiting] = (),
    ) -> list[Turn]:
        """Whose turn it is, best first: the first that can take a request gets the batch.

        ``waiting``: those of the ``num_waiting`` that may be dispatched, by arrival here.
        """

    def wakeup(
        self, loads: Sequence[InstanceLoad], num_waiting: int, *, now: float
    ) -> float | None:
        """When ``expire`` or ``turns`` may answer more than now without another event."""
