"""The core of a worker whose engine plans its own passes (``headway.engine.PlanningEngine``).

It takes the same orders and makes the same reports as :class:`WorkerCore`. An engine may show its
plans (``external_plans.py``). What another does not tell is counted here: a request begins with its
first token, and its KV is what it has computed. A dispatch has run when all of its requests have
begun, or when any request has drawn twice since: a pass was planned with it, and who has not begun
is the engine's backlog.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headway.cluster import WorkerInfo
from headway.core.worker import arrivals, drain
from headway.core.worker import sequence as requests
from headway.core.worker.events import (
    EngineAbort,
    EngineAdd,
    EngineTune,
    GatewayGone,
    KvOffered,
    LeaderConnected,
    PlanningAction,
    WorkerEvent,
)
from headway.core.worker.external_plans import follow, hold, plus
from headway.core.worker.lifecycle import Event, Stage
from headway.core.worker.reports import Reports
from headway.core.worker.room import Preemptions
from headway.core.worker.settings import WorkerSettings
from headway.core.worker.state import WorkerState
from headway.core.worker.worker_base import WorkerBase
from headway.cost.costs import Constant
from headway.cost.pass_time import Share as Work
from headway.engine import Drawn, EngineStepped
from headway.forward_pass import PassResult, Sampled
from headway.messages import (
    Accepted,
    Admission,
    CancelStream,
    Dispatch,
    Drain,
    GiveBack,
    Handoff,
    HandoffResult,
    LoadReport,
    MeasuredCosts,
    Snapshot,
    Tuned,
    WantedReports,
)
from headway.policies.batching import Batching
from headway.policies.batching.boost import Boosted, effective_work
from headway.policies.batching.uniboost_base import UniBoostBase
from headway.policies.estimation import Estimation
from headway.policies.readers import constants_of
from headway.request import FinishReason, StreamKey

_MS = 1e3  # milliseconds of a second
_MOST_PRIORITY = 2**62
_DRAWS = 2  # of one request: the pass of the first may have begun before the dispatch


class _Sent(NamedTuple):
    """A dispatch's requests, and how many the engine had been given with the last of them."""

    keys: list[StreamKey]
    num_added: int
    draws: Counter[StreamKey]
    """How often each request has drawn since, where the engine shows no plans."""


class PlanningEngineCore(WorkerBase):
    """``Core[WorkerEvent, PlanningAction]`` for an engine that plans; it has one DP unit."""

    def __init__(
        self,
        info: WorkerInfo,
        eos_token_ids: Iterable[int],
        batching: Batching,
        settings: WorkerSettings | None = None,
        estimation: Estimation | None = None,
    ) -> None:
        """``batching``: if it has a boost, its Φ is a request's priority; else UniBoost-Base's."""
        assert info.num_units == 1, "such an engine has one unit"
        settings = settings or WorkerSettings()
        self._eos_token_ids = tuple(eos_token_ids)
        state = WorkerState(info, self._eos_token_ids, settings, None, estimation)
        super().__init__(settings, state)
        self._unit = self._state.units[0]
        self._boost = batching if isinstance(batching, Boosted) else UniBoostBase()
        self._reports = Reports(self._state, settings.report_interval, batching)
        self._dispatches: dict[int, _Sent] = {}
        """Dispatches that have not run."""
        self._num_added = self._num_known = 0
        """Requests that the engine was given, and those that a plan of its has shown to know."""
        self._num_steps = 0
        self.preemptions = Preemptions()
        """Preemptions that the engine's plans have shown."""

    # --- views for the shell and metrics ----------------------------------------------

    @property
    def next_wakeup(self) -> float | None:
        """None: it waits for events alone."""
        return None

    @property
    def measured_costs(self) -> MeasuredCosts | None:
        """Return None: the engine's passes are not known well enough."""
        return None

    @property
    def constants(self) -> Sequence[Constant]:
        """Return the constants of the priority."""
        return constants_of(self._boost)

    # --- events -----------------------------------------------------------------------

    def wake(self, *, now: float) -> Sequence[PlanningAction]:
        """Do nothing: it never sleeps."""
        return []

    def handle(self, event: WorkerEvent, *, now: float) -> Sequence[PlanningAction]:
        """React to one event, and report anything that the scheduler should know."""
        actions: list[PlanningAction] = []
        pass_time = 0.0
        match event:
            case EngineStepped():
                self._on_step(event, actions, now)
                pass_time = event.pass_time
            case Dispatch():
                self._on_dispatch(event, actions)
            case CancelStream(key):
                self._cancel(key, actions)
            case GatewayGone(gateway_id):
                self._reports.doubt(gateway_id, now=now)
                for key in [k for k in self._unit.sequences if k.gateway_id == gateway_id]:
                    self._cancel(key, actions)
                self._state.outbox.forget(gateway_id)
            case LeaderConnected() | WantedReports():
                self._on_wanted(event, actions)
            case Tuned(gamma):
                self._boost.tune(gamma)
                actions.append(EngineTune(gamma))
            case GiveBack(keys):
                returned = drain.give_back(self._state, keys)
                actions += [returned, *(EngineAbort(key) for key in returned.keys)]
            case Handoff():
                actions.append(_stays(event, is_held=event.key in self._unit.sequences))
            case KvOffered(header):
                actions.append(arrivals.answer_offer(self._state, header))
            case Drain():
                self._reports.draining = True
                actions.append(self._reports.snapshot())
        self._report(event, pass_time, actions, now)
        return [*self._state.sends(now), *actions]

    def _report(
        self, event: WorkerEvent, pass_time: float, actions: list[PlanningAction], now: float
    ) -> None:
        """Report the dispatches that have run, news, and loads that are due."""
        held = self._unit.sequences
        ran = [number for number, sent in self._dispatches.items() if self._has_run(sent)]
        for number in ran:
            del self._dispatches[number]
        is_step = isinstance(event, EngineStepped)
        if ran or self._state.news.is_any or (is_step and self._reports.is_due(now)):
            actions.append(self._reports.end_forward(self._num_steps, pass_time, ran, now))
        if is_step or not held:
            report = self._reports.load_report(now)
            if report is not None:
                actions.append(report)

    def _has_run(self, sent: _Sent) -> bool:
        """Return whether a pass was planned with a dispatch, or all of its requests have begun."""
        was_planned = (
            sent.num_added <= self._num_known or max(sent.draws.values(), default=0) >= _DRAWS
        )
        return was_planned or not any(map(self._waits, sent.keys))

    def _waits(self, key: StreamKey) -> bool:
        """Return whether a request is here and has not begun."""
        sequence = self._unit.sequences.get(key)
        return sequence is not None and sequence.stage is Stage.WAITING

    # --- orders -----------------------------------------------------------------------

    def _on_wanted(
        self, event: LeaderConnected | WantedReports, actions: list[PlanningAction]
    ) -> None:
        """Greet a leader, or report what it reads from now on."""
        reports: Sequence[Snapshot | LoadReport | None]
        if isinstance(event, WantedReports):
            reports = [self._reports.want(event)]
        else:
            self._state.fencing_token = event.fencing_token
            reports = self._reports.greet(event.wants)
        actions += [each for each in reports if each is not None]

    def _on_dispatch(self, dispatch: Dispatch, actions: list[PlanningAction]) -> None:
        actions.append(Accepted(dispatch.dispatch_id))
        if not self._is_new(dispatch.dispatch_id):
            return
        waiting: list[StreamKey] = []
        for batch in dispatch.batches:
            for request in batch.requests:
                is_new = request.key not in self._unit.sequences
                self._state.queue(request, batch.unit)
                sequence = self._state.find(request.key)
                if is_new and sequence is not None:
                    waiting.append(request.key)
                    self._num_added += 1
                    actions.append(EngineAdd(request, self._priority(sequence)))
        self._dispatches[dispatch.dispatch_id] = _Sent(waiting, self._num_added, Counter())

    def _priority(self, sequence: requests.Sequence) -> int:
        """Return UniBoost's Φ at this moment in ms: it stays as it is while the engine serves.

        A request with a class counts from when it is due instead of from its arrival. Who yields
        has no boost either: all others that are due before come first.
        """
        phi = sequence.due_at
        if not sequence.yields:
            boosted = self._boost.priority(sequence, effective_work(sequence))[0]
            phi = boosted + (sequence.due_at - sequence.arrival_at)
        return int(max(-_MOST_PRIORITY, min(_MOST_PRIORITY, phi * _MS)))

    def _cancel(self, key: StreamKey, actions: list[PlanningAction]) -> None:
        if key in self._unit.sequences:
            actions.append(EngineAbort(key))
            self._state.cancel(key)

    # --- tokens -----------------------------------------------------------------------

    def _on_step(self, step: EngineStepped, actions: list[PlanningAction], now: float) -> None:
        self._num_steps += 1
        work = Work()
        if step.plan is not None:
            work = follow(self._unit, step.plan, self.preemptions)
            self._num_known = max(self._num_known, step.plan.num_added)
        else:
            for sent in self._dispatches.values():
                sent.draws.update([drawn.key for drawn in step.drawn if drawn.token_ids])
        for drawn in step.drawn:
            sequence = self._state.find(drawn.key)
            if sequence is not None:
                work = plus(work, self._take(sequence, drawn, step, actions, now))
        result = PassResult(self._num_steps, step.pass_time, ())
        self._reports.work.ran([work], result)
        self._boost.passed(step.pass_time, work.prefill_tokens + work.batch)
        self._reports.step_time = step.pass_time or self._reports.step_time

    def _take(
        self,
        sequence: requests.Sequence,
        drawn: Drawn,
        step: EngineStepped,
        actions: list[PlanningAction],
        now: float,
    ) -> Work:
        """Take what was drawn for one request; return what that cost the engine."""
        token_ids, reason = drawn.token_ids, drawn.finish_reason
        if not token_ids and reason is FinishReason.STOP:
            token_ids = self._eos_token_ids[:1]  # some engines keep the last token to themselves
        work = Work()
        if token_ids:
            if step.plan is None:
                work = self._begin_or_go_on(sequence, drawn)
            reason = self._draw(sequence, token_ids, drawn, step, now)
        elif reason is not None:
            message = drawn.message or f"the engine ended the request without a token: {reason}"
            self._state.fail(sequence, message, drawn.code)
            return work
        if reason is not None:
            if drawn.finish_reason is None:
                actions.append(EngineAbort(sequence.key))
            self._state.finish(sequence, reason)
        return work

    def _begin_or_go_on(self, sequence: requests.Sequence, drawn: Drawn) -> Work:
        num_tokens = sequence.num_tokens
        if sequence.stage is not Stage.WAITING:
            sequence.computed(1)
            return Work(0, 0, 1, num_tokens)
        num_cached = min(drawn.num_cached_tokens, num_tokens - 1)
        sequence.kv.num_hit_tokens = num_cached
        sequence.num_cached_tokens = max(num_cached, sequence.num_cached_tokens)
        self._unit.prefix_counts.num_asked_tokens += num_tokens
        self._unit.prefix_counts.num_hit_tokens += num_cached
        self._unit.admitted.append(Admission(sequence.key, num_cached))
        self._unit.move(sequence, Event.ADMITTED)
        sequence.computed(num_tokens)
        return Work(num_tokens - num_cached, (num_tokens - num_cached) * num_cached, 0, 0)

    def _draw(
        self,
        sequence: requests.Sequence,
        token_ids: tuple[int, ...],
        drawn: Drawn,
        step: EngineStepped,
        now: float,
    ) -> FinishReason | None:
        """Add the tokens and send them; return why the request ends with them, or None."""
        is_told = len(drawn.logprobs) == len(token_ids)
        for n, token in enumerate(token_ids):  # an entry each: the wire has no tokens without one
            if n and step.plan is None:
                sequence.computed(1)
            sampled = Sampled(sequence.key, token, drawn.logprobs[n] if is_told else None)
            self._state.drew(sequence, sampled, now=now, step=step.pass_time)
            self._state.lives.drew(sequence)
            ended = drawn.finish_reason if n == len(token_ids) - 1 else None
            reason = self._state.send(sequence, sampled, ended)
            if reason is not None:
                return reason
        hold(self._unit, sequence, sequence.num_tokens)
        self._unit.recount(sequence)  # its engine may have preempted it with this step
        return None


def _stays(order: Handoff, *, is_held: bool) -> HandoffResult:
    """Return the answer to an order that such an engine cannot follow."""
    return HandoffResult(
        order.key,
        order.target_worker_id,
        order.target_unit,
        ok=False,
        retriable=is_held,
        message="this worker's engine sends no KV",
        fencing_token=order.fencing_token,
    )
