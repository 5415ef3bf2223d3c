"""``sbs``: Staggered Batch Scheduling's adaptive interval and triple-checked readiness.

Algorithm 1 and section 4.1 of the paper; ``docs/sbs.md`` says what it leaves open and how that
is settled here. Convertible decoders are in the table only while they are armed
(``docs/composition.md``, stage 2).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import ClassVar

from headway.bounds import between, over
from headway.cluster import Role
from headway.cost.costs import Constant, Costs, Source
from headway.policies.answer import Answer
from headway.policies.dispatch.feasibility import TtftSlos, infeasible
from headway.policies.dispatch.protocol import Dispatching, Expiry, InstanceLoad, Turn, Waiting
from headway.policies.readers import CostReader, chosen
from headway.request import StreamKey

TOP_UP, CONVERTIBLE, LONE, PASSES = "top-up", "convertible", "lone-unit", "passes"
_BESIDE = (TOP_UP, CONVERTIBLE, LONE, PASSES)
"""Rules of turns that the interval does not wait for."""
_FIRST_PASS = 0.05
"""T̄ while nothing is known, seconds."""


@dataclass(slots=True)
class _Instance:
    """``awaited_id``: the last dispatch, while its EndForward is out. ``turn``: its number."""

    role: Role
    awaited_id: int | None = None
    watchdog_at: float = inf
    fallback: bool = False
    dispatched_at: float = -inf
    turn: int = 0
    ended_at: float = -inf


@dataclass(frozen=True, slots=True)
class SbsParams(TtftSlos):
    """``default_pass_time``: T̄ before the first report, s; None: as the pool's passes cost, by
    profile or measured. ``window``: W, passes.

    ``watchdog_floor``: the least watchdog, seconds, for passes shorter than a machine's hiccups.
    ``prefill_tokens_per_s``: V_P of one prefiller, which judges whether a first token can come
    within its SLO; 0: the pool's, by profile or measured, and a chunk in each T̄ before.
    ``late_weight``: times its SLO for which a request that can come in time no more lets others
    pass. 0: nobody does. The more, the more come in time in an overload, and the longer the others
    take. ``conserves``: whether an idle prefiller of one unit takes what waits at once: there is no
    batch to pack over units. ``base_share``: of the time of a pass, what is spent beside its prompt
    tokens at least: a turn to a prefiller of one unit has no more of them. 0: as many as its chunk.
    """

    default_pass_time: float | None = over(0, default=None)
    window: int = between(1, 100_000, default=32)
    watchdog_factor: float = between(1, 1e6, default=5.0)
    watchdog_floor: float = between(0, 1e6, default=0.0)
    prefill_tokens_per_s: float = between(0, 1e12, default=0.0)
    late_weight: float = between(0, 1e6, default=0.0)
    conserves: bool = False
    base_share: float = between(0, 1, default=0.0)


class StaggeredBatch(Dispatching, CostReader):
    """Dispatches a batch an instance and pass, in turns, an adaptive interval apart."""

    lingers: ClassVar[bool] = True

    def __init__(self, params: SbsParams | None = None) -> None:
        self._params = params = params or SbsParams()
        self._given = params.default_pass_time
        super().__init__(params.window, self._given or _FIRST_PASS)
        self.learn(Costs())
        self._watchdog_factor = params.watchdog_factor
        self._watchdog_floor = params.watchdog_floor
        self._instances: dict[str, _Instance] = {}
        self._num_active = self._num_convertible = 0
        self._all_convert = False
        self._watchdogs: list[tuple[float, str]] = []  # those that were disarmed since included
        self._cycle_at = -inf
        self._num_turns = 0
        self._next_tokens = 1
        self._are_lone = False

    # --- T̄ before the first report, and V_P ---------------------------------------------

    def learn(self, costs: Costs) -> None:
        """Begin with a pass over half a chunk, until one is reported; take the pool's V_P."""
        known, source = costs.first_pass or None, costs.source_of("first_pass")
        self._first_pass = chosen("T̄", self._given, known, source, _FIRST_PASS)
        self._pass_times.begin(self._first_pass.value)
        self._base, self._slope = costs.prefill_base, costs.prefill_slope
        given, velocity = self._params.prefill_tokens_per_s or None, costs.prefill_tokens_per_s
        source = costs.source_of("prefill_tokens_per_s")
        self._velocity = chosen("V_P", given, velocity or None, source, 0.0)

    def constants(self) -> Sequence[Constant]:
        """Return T̄, and V_P once it is known or was needed."""
        pass_time, velocity = self._first_pass, self._velocity
        if self._pass_times.is_measured:
            pass_time = Constant("T̄", self.mean_pass_time, Source.MEASURED)
        return (pass_time, velocity) if 0 < velocity.value < inf else (pass_time,)

    # --- Algorithm 1 ------------------------------------------------------------------

    @property
    def interval(self) -> float:
        """``I = (T̄ + L_net) / N_active``; infinite without an instance: nothing is dispatched.

        Convertible decoders are not active, unless there is no other instance.
        """
        return self._turn_round / self._num_active if self._num_active else inf

    @property
    def _turn_round(self) -> float:
        return self._pass_times.value + self._latencies.value

    @property
    def cycle_time(self) -> float:
        """The interval; T̄ + L_net where instances take requests whenever they have room."""
        return self._turn_round if self._are_lone else self.interval

    def join(self, worker_id: str, role: Role = Role.PREFILL) -> None:
        """Add an instance, to N_active unless it is convertible."""
        self._instances.setdefault(worker_id, _Instance(role)).role = role
        self._count_active()

    def leave(self, worker_id: str) -> None:
        """Remove an instance from N_active."""
        self._instances.pop(worker_id, None)
        self._count_active()

    def _count_active(self) -> None:
        roles = [instance.role for instance in self._instances.values()]
        self._num_convertible = roles.count(Role.CONVERTIBLE)
        self._all_convert = self._num_convertible == len(roles)
        self._num_active = len(roles) - self._num_convertible or len(roles)

    # --- readiness --------------------------------------------------------------------

    def dispatched(self, turn: Turn, dispatch_id: int, *, now: float) -> None:
        """Arm the watchdog: the instance is not ready until this dispatch ends."""
        instance = self._instances[turn.worker_id]
        self._num_turns += 1
        instance.turn = self._num_turns
        instance.awaited_id = dispatch_id
        timeout = max(self._watchdog_factor * self._pass_times.value, self._watchdog_floor)
        instance.watchdog_at = now + timeout
        heappush(self._watchdogs, (instance.watchdog_at, turn.worker_id))
        instance.dispatched_at = now
        self.passed(turn, now=now)

    def passed(self, turn: Turn, *, now: float) -> None:
        """Start the interval to the next turn; top-ups and convertibles do not count."""
        if turn.rule not in _BESIDE:
            self._cycle_at = now

    def ended(
        self, worker_id: str, dispatch_ids: Sequence[int], pass_time: float | None, *, now: float
    ) -> None:
        """Ready if this ended the dispatch last given; late and repeated ids release nothing."""
        instance = self._instances.get(worker_id)
        if instance is not None and instance.role is Role.CONVERTIBLE:
            pass_time = None  # T̄ is of passes that only prefill
        super().ended(worker_id, dispatch_ids, pass_time, now=now)
        if instance is None:
            return
        instance.fallback = False
        instance.ended_at = now
        if instance.awaited_id in dispatch_ids:
            instance.awaited_id = None
            instance.watchdog_at = inf

    def expire(self, *, now: float) -> Sequence[Expiry]:
        """Let silent instances fall back to fixed-interval dispatch until an EndForward comes."""
        expired = []
        while self._next_watchdog() <= now:
            worker_id = heappop(self._watchdogs)[1]
            instance = self._instances[worker_id]
            assert instance.awaited_id is not None, "its watchdog is armed"
            waited = now - instance.dispatched_at
            expired.append(Expiry(worker_id, instance.awaited_id, waited))
            instance.fallback = True
            instance.watchdog_at = inf
        return sorted(expired, key=lambda expiry: expiry.worker_id)

    def _next_watchdog(self) -> float:
        """Return when the next watchdog expires, infinite for none; drop those disarmed since."""
        watchdogs = self._watchdogs
        while watchdogs:
            at, worker_id = watchdogs[0]
            instance = self._instances.get(worker_id)
            if instance is None or instance.awaited_id is None or instance.watchdog_at != at:
                heappop(watchdogs)
                continue
            return at
        return inf

    def _ready_at(self, load: InstanceLoad) -> float:
        """Return when it is ready as things stand: -inf for now, inf for after an EndForward."""
        instance = self._instances[load.worker_id]
        if instance.awaited_id is None or load.task_depth == 0 or load.is_lone:
            return -inf
        # One turn round at the fixed interval, as if its pass had ended on time.
        return instance.dispatched_at + self._turn_round if instance.fallback else inf

    # --- turns ------------------------------------------------------------------------

    def turns(
        self,
        loads: Sequence[InstanceLoad],
        num_waiting: int,
        *,
        now: float,
        waiting: Collection[Waiting] = (),
    ) -> list[Turn]:
        """Return top-ups, then the interval's turn, or idle instances if waiting wins nothing.

        Longest without a dispatch first; instances that the watchdog gave up come last. An armed
        convertible comes behind idle prefillers and before busy ones.
        """
        self._next_tokens = max(1, next((self._uncached(each) for each in waiting), 1))
        if not self._num_convertible:
            return self._turns(loads, num_waiting, now)
        convertibles = [load for load in loads if load.role is Role.CONVERTIBLE]
        if not convertibles or len(convertibles) == len(loads):
            return self._turns(loads, num_waiting, now)
        prefillers = [load for load in loads if load.role is not Role.CONVERTIBLE]
        turns = self._turns(prefillers, num_waiting, now)
        due_in = 0.0 if turns else max(0.0, self._cycle_at + self.interval - now)
        ready = [load for load in convertibles if can_take(load) and self._ready_at(load) <= now]
        keys = self._excess(prefillers, waiting, due_in, now) if ready else []
        armed = sorted(ready, key=self._rank) if keys else []
        idle = {load.worker_id for load in prefillers if load.task_depth == 0}
        first = [turn for turn in turns if turn.worker_id in idle]
        beside = [Turn(load.worker_id, CONVERTIBLE, keys=keys) for load in armed]
        return [*first, *beside, *(turn for turn in turns if turn.worker_id not in idle)]

    def steps_back(self, request: Waiting, *, now: float) -> bool:
        """Return whether it can come in time no more, and has not waited ``late_weight`` SLOs yet.

        Who keeps its turn in any case: nobody reads its first token and no class promises one, or
        its prompt alone takes too long.
        """
        params = self._params
        limit = params.limit(request) if params.late_weight else 0.0
        if now >= request.arrival_at + params.late_weight * limit:
            return False
        alone = request.num_tokens / (self._velocity.value or inf)
        is_late = params.left(request, now=now) < alone <= limit * (1 - params.margin)
        return is_late and (request.opens_answer or request.due_at > request.arrival_at)

    def _uncached(self, request: Waiting) -> int:
        """Return the tokens that every unit lacks of a prompt."""
        matches = self.matches(request)
        return request.num_tokens - (matches.shortest if matches is not None else 0)

    def _excess(
        self,
        prefillers: Sequence[InstanceLoad],
        waiting: Collection[Waiting],
        due_in: float,
        now: float,
    ) -> list[StreamKey]:
        """Return what convertibles may prefill: burst requests, and those late elsewhere.

        ``due_in``: seconds to the prefillers' next turn.
        """
        regular = [request for request in waiting if not request.is_burst]
        if self._velocity.source is Source.DEFAULT:
            self._velocity = Constant("V_P", self._chunk_rate(prefillers), Source.DEFAULT)
        velocity = self._velocity.value
        ahead = [max(due_in, load.queued_tokens / velocity) for load in prefillers]
        late = infeasible(regular, ahead, velocity, self._params, now)
        return [r.key for r in waiting if r.is_burst] + [request.key for request in late]

    def _chunk_rate(self, prefillers: Sequence[InstanceLoad]) -> float:
        """Return the tokens/s of the mean prefiller that computes a chunk in each T̄."""
        num_tokens = sum(load.chunk_tokens for load in prefillers) / len(prefillers)
        return max(num_tokens, 1.0) / self._pass_times.value if self._pass_times.value else inf

    def _turns(self, loads: Sequence[InstanceLoad], num_waiting: int, now: float) -> list[Turn]:
        ready = [load for load in loads if can_take(load) and self._ready_at(load) <= now]
        ready.sort(key=self._rank)
        self._are_lone = bool(ready) and all(load.is_lone for load in ready)
        turns = [Turn(load.worker_id, TOP_UP) for load in ready if self._has_leftovers(load, now)]
        if now >= self._cycle_at + self.interval:
            turns += [Turn(load.worker_id, self._rule(load)) for load in ready]
        elif self._are_lone:
            turns += [Turn(load.worker_id, LONE) for load in ready]
        else:
            idle = [load for load in ready if load.task_depth == 0]
            if num_waiting > 1 and any(load.task_depth for load in loads):
                idle = [load for load in idle if self._params.conserves and _computes_alone(load)]
            turns += [Turn(load.worker_id, "idle") for load in idle]
        most = self._most_tokens
        if most == inf:
            return turns
        empty = {load.worker_id for load in ready if _computes_alone(load)}
        return [t._replace(max_tokens=most) if t.worker_id in empty else t for t in turns]

    @property
    def _most_tokens(self) -> float:
        """Prompt tokens of a pass that spends ``base_share`` of its time beside them.

        Until the next dispatch is there the instance stands idle: that is beside them, too.
        """
        share, slope = self._params.base_share, self._slope
        if not (share and slope and self._base):
            return inf
        return (1 / share - 1) * (self._base + self._latencies.value) / slope

    def _has_leftovers(self, load: InstanceLoad, now: float) -> bool:
        return load.queued_tokens > 0 and self._instances[load.worker_id].ended_at == now

    def _rank(self, load: InstanceLoad) -> tuple[bool, int, int, str]:
        """Rank by the last turn; those that decode as well by what delays a prompt there.

        The paper's instances only prefill. Where requests of one batch delay each other, turns
        alone would treat a busy unit like an idle one: a prompt waits for those queued, and delays
        everybody who is there.
        """
        instance = self._instances[load.worker_id]
        delay = 0
        if load.role is Role.UNIFIED:
            delay = load.queued_tokens + self._next_tokens * (load.num_outstanding + 1)
        return instance.fallback, delay, instance.turn, load.worker_id

    def _rule(self, load: InstanceLoad) -> str:
        if self._instances[load.worker_id].fallback:
            return "fixed-interval"
        return "quiescence" if load.task_depth == 0 else "end-forward"

    def wakeup(
        self, loads: Sequence[InstanceLoad], num_waiting: int, *, now: float
    ) -> float | None:
        """Return the next watchdog, or the next turn of an instance that is or will be ready."""
        earliest = self._next_watchdog()
        if num_waiting:
            due_at = self._cycle_at + self.interval
            regular = loads
            if self._num_convertible:
                regular = [load for load in loads if load.role is not Role.CONVERTIBLE] or loads
            ready_at = [self._ready_at(load) for load in regular if can_take(load)]
            times = [turn_at for r in ready_at if (turn_at := max(r, due_at)) > now]
            earliest = min(earliest, *times) if times else earliest
        return earliest if earliest < inf else None


def _computes_alone(load: InstanceLoad) -> bool:
    """Return whether it is a prefiller of one unit, and owes no prompt."""
    return load.role is Role.PREFILL and load.num_units == 1 and not load.queued_tokens


def can_take(load: InstanceLoad) -> bool:
    """Return whether a unit of it has chunk left, and one has free blocks."""
    return load.has_capacity and load.has_room


ANSWER = Answer("sbs", StaggeredBatch, "SBS, Algorithm 1 and section 4.1", SbsParams)
