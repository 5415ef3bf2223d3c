"""The input and the output of a dispatch policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, inf, isfinite
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Protocol

from headway.cluster import Role, UnitId
from headway.cost.pass_time import MOST_SECONDS
from headway.policies.dispatch.prefix_hits import Matches
from headway.policies.packing.protocol import Prompted
from headway.request import StreamKey

_MOST_TIMES = 100.0
"""A pass counts as at most so many times T̄: a worker that stood still holds up nobody else."""


FindMatches = Callable[["Waiting"], Matches | None]
"""Returns who holds beginnings of a request's prompt; None if nobody does."""


class UnitDebt(NamedTuple):
    """A DP unit that takes prompts, as a dispatch policy sees it; tokens and requests."""

    unit: UnitId
    num_tokens: int
    """Prompt tokens that it owes: U_flight + R_queued, without cached ones."""
    num_requests: int
    """Requests that it was sent and has not let go of."""
    capacity: int
    """C_avail."""
    free_tokens: int
    """The longest prompt that it has blocks for."""
    num_running: int = 0
    """Requests of these that decode."""
    kv_tokens: int = 0
    """KV that its requests use, or that their prompts will; what is merely cached is free."""
    kv_capacity: int = 1 << 62
    """KV that it has room for."""
    prompts: Sequence[int] = ()
    """Tokens of each prompt that a prefiller or a unified unit was sent and has not computed,
    without cached ones, least first; those not known are left out."""
    yielding_kv_tokens: int = 0
    """KV that yields to a reader's first token, beside what is free."""

    def passable(self, chunk_tokens: int, least: int = 0) -> int:
        """Return the longest prompt that has less than a chunk before it, if it passes others.

        It passes prompts of twice its length or more, and of ``least`` tokens or more. 0 if none
        would; tokens.
        """
        lengths, owed = self.prompts, self.num_tokens
        longer, shorter = 0, sum(lengths)
        for number in range(len(lengths) - 1, -1, -1):
            if lengths[number] < least:
                break
            longer, shorter = longer + lengths[number], shorter - lengths[number]
            if max(owed - longer, min(owed, shorter)) < chunk_tokens:
                return lengths[number] // 2
        return 0


@dataclass(frozen=True, slots=True)
class InstanceLoad:
    """An instance that takes prefill work now, as a dispatch policy sees it."""

    worker_id: str
    task_depth: int
    """Reported prefill tokens not yet computed, plus dispatches on their way; 0: quiescence."""
    queued_tokens: int
    """U_flight + R_queued over its units."""
    num_outstanding: int
    """Requests that it was sent and has not let go of."""
    num_queued: int
    """Requests of these that do not run yet."""
    has_capacity: bool
    """True if any unit has C_avail above 0."""
    has_room: bool
    """True if any unit has free KV blocks."""
    role: Role = Role.PREFILL
    num_decoding: int = 0
    """B over its units."""
    free_tokens: int = 1 << 62
    """The longest prompt that a unit has blocks for."""
    kv_tokens: int = 0
    """KV in blocks and in host memory, and what is queued."""
    is_on_schedule: bool = True
    """True if no reader of its answers waits (PASCAL's t_i)."""
    chunk_tokens: int = 0
    """C_chunk over its units."""
    units: Sequence[UnitDebt] = ()
    """Its units, in order."""
    takes_readers: bool = False
    """True if a unit has chunk and blocks for a reader's first token, counting what yields to it.
    """

    @property
    def num_units(self) -> int:
        """Number of its units; 1 where they are not told."""
        return max(1, len(self.units))

    @property
    def is_lone(self) -> bool:
        """True for one unit that decodes as well.

        It has no batch to pack over units, and its next pass begins before a message could say
        that the last one has ended: what waits for that word waits for a pass more.
        """
        return self.role is Role.UNIFIED and self.num_units == 1


class Waiting(Prompted, Protocol):
    """A request of the window, as a dispatch policy sees it."""

    @property
    def due_at(self) -> float:
        """When its class has its first token due; its arrival where it has no such promise."""

    @property
    def is_burst(self) -> bool:
        """True if the gateway labelled it as beyond the mean."""

    @property
    def session_id(self) -> str:
        """The client's name for its conversation; "" for none."""

    @property
    def expected_output(self) -> float:
        """Output tokens that its gateway expects; 0 if unknown."""


class OwnUnit(NamedTuple):
    """The unit that a request goes to for what that unit holds of it, and why.

    ``num_hit_tokens`` and ``num_owed_tokens``: cached there, and owed before it. ``cost`` in
    seconds, and that of the ``runner_up``: inf for none. ``wait``: seconds until the unit's turn,
    as expected when the request first could not go there; 0 if it went at once. ``longest_wait``:
    seconds after which it would have gone anywhere, 0 for no such bound. ``num_host_tokens`` of
    the hit are in host memory.
    """

    unit: UnitId
    num_hit_tokens: int = 0
    num_owed_tokens: int = 0
    cost: float = 0.0
    runner_up: UnitId | None = None
    runner_up_cost: float = inf
    wait: float = 0.0
    longest_wait: float = 0.0
    num_host_tokens: int = 0


NOBODY: Mapping[StreamKey, OwnUnit] = MappingProxyType({})


class Turn(NamedTuple):
    """An instance that may be given requests now, and the rule that says so.

    ``max_requests``: at most so many, oldest first; None: what fits. ``capped``: whether a unit
    takes a request only while its C_avail is above 0. ``keys``: these requests only; None: any.
    ``own``: those of them that go to one unit of it and no other. ``max_tokens``: a unit takes a
    request only while it was sent fewer prompt tokens than so many.
    """

    worker_id: str
    rule: str
    max_requests: int | None = None
    capped: bool = True
    keys: Sequence[StreamKey] | None = None
    own: Mapping[StreamKey, OwnUnit] = NOBODY
    max_tokens: float = inf


@dataclass(frozen=True, slots=True)
class Expiry:
    """The watchdog gave an instance up: no EndForward ``waited`` seconds after a dispatch."""

    worker_id: str
    dispatch_id: int
    waited: float


class SlidingMean:
    """Mean of the last ``size`` values in seconds; ``default`` before the first (Algorithm 1).

    A value that is negative, NaN, infinite or above ``most`` is dropped and counted, and never
    enters. Any counts as at most ``most_times`` the mean so far.
    """

    def __init__(
        self, size: int, default: float, *, most: float = inf, most_times: float = inf
    ) -> None:
        self._values: deque[float] = deque(maxlen=size)
        self._most, self._most_times = most, most_times
        self._is_recalled = False
        self.value = default
        """The mean, seconds."""
        self.num_dropped = 0

    @property
    def is_measured(self) -> bool:
        """True once a value or an earlier mean has replaced the default."""
        return self._is_recalled or bool(self._values)

    def begin(self, default: float) -> None:
        """Take another default, if it is still needed."""
        if not self.is_measured:
            self.value = default

    def recall(self, mean: float) -> None:
        """Take an earlier mean in place of the default; nonsense is ignored."""
        if not self._values and isfinite(mean) and mean >= 0:
            self.value, self._is_recalled = mean, True

    def add(self, value: float) -> bool:
        """Take one value in; False if it was dropped."""
        if not (isfinite(value) and 0.0 <= value <= self._most):
            self.num_dropped += 1
            return False
        if self._values and self.value > 0:
            value = min(value, self._most_times * self.value)
        self._values.append(value)
        self.value = fsum(self._values) / len(self._values)
        return True


class Dispatching(ABC):
    """A rule for when waiting requests are given to an instance, and to which.

    One object serves the instances of one model. Its caller keeps it told of everything below,
    and asks for turns after every event. A policy that never waits overrides ``turns`` alone.
    """

    lingers: ClassVar[bool] = False
    """True if workers with prompt tokens left over wait a moment for a top-up of their chunk."""

    holds_back: ClassVar[bool] = True
    """True if requests wait in the window while no instance is ready for them."""

    reads_phases: bool = False
    """True if it reads ``is_on_schedule``, which workers have to report."""

    def __init__(self, window: int, default_pass_time: float) -> None:
        """Keep means over ``window`` passes; the first pass time is ``default_pass_time``, s."""
        self._pass_times = SlidingMean(
            window, default_pass_time, most=MOST_SECONDS, most_times=_MOST_TIMES
        )
        self._latencies = SlidingMean(window, 0.0, most=MOST_SECONDS)
        self.matches: FindMatches = lambda entry: None
        """Set by its caller, if the policy reads prefixes and they are known."""
        self.matches_version: Callable[[], Hashable] = object
        """Returns what differs once ``matches`` may return other units; set by its caller."""
        self.whose: Callable[[Waiting], Hashable] = lambda entry: None
        """Returns whom a request counts for, its tenant and class; set by its caller."""
        self.held: Mapping[StreamKey, OwnUnit] = NOBODY
        """Requests that wait for one unit, as of the last turns: they hold up nobody."""

    @property
    def interval(self) -> float:
        """Seconds between dispatches; 0 where there is no such thing."""
        return 0.0

    @property
    def cycle_time(self) -> float:
        """Seconds of a dispatch cycle, by which flow control counts how long requests wait."""
        return self.interval or self.mean_pass_time

    @property
    def mean_pass_time(self) -> float:
        """T̄ over the last passes, seconds."""
        return self._pass_times.value

    @property
    def dispatch_latency(self) -> float:
        """L_net, seconds: the mean round trip of the last dispatches."""
        return self._latencies.value

    @property
    def num_bad_times(self) -> int:
        """Reported pass times that were negative, NaN or infinite, and dropped."""
        return self._pass_times.num_dropped

    def join(self, worker_id: str, role: Role = Role.PREFILL) -> None:
        """Take in an instance that takes prefill work from now on; a repeat may change its role."""

    def leave(self, worker_id: str) -> None:
        """Forget an instance that takes no more; unknown ids are ignored."""

    def dispatched(self, turn: Turn, dispatch_id: int, *, now: float) -> None:
        """Note that the turn was used: a dispatch has been sent."""

    def passed(self, turn: Turn, *, now: float) -> None:
        """Note that the turn could not be used: no waiting request fitted."""

    def acknowledged(self, round_trip: float) -> None:
        """Note that a dispatch was acknowledged this many seconds after it was sent."""
        self._latencies.add(round_trip)

    def recall(self, pass_time: float, latency: float) -> None:
        """Go on with T̄ and L_net of an earlier leader, until the first reports of this one."""
        self._pass_times.recall(pass_time)
        self._latencies.recall(latency)

    def ended(
        self, worker_id: str, dispatch_ids: Sequence[int], pass_time: float | None, *, now: float
    ) -> None:
        """Take in an EndForward; ``pass_time`` is None where no prefill was in the pass."""
        if pass_time is not None:
            self._pass_times.add(pass_time)

    def expire(self, *, now: float) -> Sequence[Expiry]:
        """Give up on instances that have been silent for too long; each dispatch only once."""
        return ()

    @abstractmethod
    def turns(
        self,
        loads: Sequence[InstanceLoad],
        num_waiting: int,
        *,
        now: float,
        waiting: Collection[Waiting] = (),
    ) -> list[Turn]:
        """Return whose turn it is, best first: the first that can take a request gets the batch.

        ``waiting``: those of the ``num_waiting`` that may be dispatched, by arrival here; of
        several tenants in turn.
        """

    def steps_back(self, request: Waiting, *, now: float) -> bool:
        """Return whether a waiting request lets others of its tenant go first."""
        return False

    def wakeup(
        self, loads: Sequence[InstanceLoad], num_waiting: int, *, now: float
    ) -> float | None:
        """Return when ``expire`` or ``turns`` may answer more than now without another event."""
        return None
