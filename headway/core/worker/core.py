"""The worker's decisions: what each forward pass computes, and what becomes of its tokens.

A pass is over all DP units in lock-step. One is in flight at a time, and where the worker runs
ahead another one behind it. Blocks of a sequence are freed only when it is in no pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from math import inf

from headway.cluster import UnitLoad, WorkerInfo
from headway.core.worker.ahead import Flight, can_run_ahead, taken_for_granted
from headway.core.worker.drain import give_back, let_go, told_to_move
from headway.core.worker.events import (
    GatewayGone,
    PassCut,
    PassFailed,
    Predicted,
    PredictorKnown,
    SchedulerConnected,
    TransferEvent,
    WorkerAction,
    WorkerEvent,
)
from headway.core.worker.failures import end_failed_pass
from headway.core.worker.loads import load_report, loads_with_phases
from headway.core.worker.plan import PassPlanner, Preemptions
from headway.core.worker.prediction import Predictions
from headway.core.worker.sequence import SequenceState, Stage
from headway.core.worker.settings import WorkerSettings
from headway.core.worker.state import HashesOf, Oracle, WorkerState
from headway.core.worker.steps import cut_steps, reserve_steps, return_steps
from headway.core.worker.transfers import (
    end_returns,
    end_swaps,
    leave_all,
    on_transfer,
    stay,
)
from headway.core.worker.unit import PrefixCounts
from headway.core.worker.unit_plan import Limits
from headway.core.worker.work import WorkMeter
from headway.forward_pass import ForwardPass, PassItem, PassResult
from headway.messages import (
    Accepted,
    CancelStream,
    ChangeRole,
    Dispatch,
    Drain,
    EndForward,
    GiveBack,
    Snapshot,
    Tuned,
    WantedReports,
)
from headway.policies.batching import Batching
from headway.policies.estimation import Estimation
from headway.policies.rescheduling import Horizon
from headway.request import FinishReason

__all__ = ["WorkerCore", "WorkerSettings"]


class WorkerCore:
    """``Core[WorkerEvent, WorkerAction]``; ``docs/architecture.md`` shows its place."""

    def __init__(
        self,
        info: WorkerInfo,
        eos_token_ids: Iterable[int],
        batching: Batching,
        settings: WorkerSettings | None = None,
        oracle: Oracle | None = None,
        estimation: Estimation | None = None,
        hashes_of: HashesOf | None = None,
    ) -> None:
        self.settings = settings = settings or WorkerSettings()
        self._state = WorkerState(
            info,
            eos_token_ids,
            settings.end_of_reasoning,
            oracle,
            start_of_reasoning=settings.start_of_reasoning,
            estimation=estimation,
            host_tokens=settings.host_tokens,
            caches_prefixes=settings.prefix_caching,
            swaps_beside=settings.swaps_beside,
            hashes_of=hashes_of,
        )
        limits = Limits(info.chunk_tokens, settings.watermark, settings.max_running)
        self._planner = PassPlanner(batching, limits)
        self._predictions = Predictions(
            self._state, settings.predict_every, is_ranked_by=batching.reads_lengths
        )
        self._draining = False
        self._flights: deque[Flight] = deque()
        self._pass_id = 0
        self._step_time = 0.0
        self._lingers_until: float | None = None
        self._reported_at = self._load_reported_at = 0.0
        self._wants = WantedReports()
        self._work = WorkMeter()
        self._seen_dispatches: dict[int, None] = {}
        self._waiting_dispatches: list[int] = []  # acknowledged, no pass planned since

    @property
    def next_wakeup(self) -> float | None:
        """When a pass begins that lingered for a dispatch."""
        return self._lingers_until

    @property
    def num_held(self) -> int:
        """Requests that this worker has not let go of."""
        return sum(len(unit.sequences) for unit in self._state.units)

    @property
    def loads(self) -> tuple[UnitLoad, ...]:
        """Every unit's load now."""
        return self._state.loads

    @property
    def prefix_counts(self) -> PrefixCounts:
        """How much of what was asked for the prefix cache had, since the start."""
        counts = [unit.prefix_counts for unit in self._state.units]
        return PrefixCounts(
            sum(c.num_asked_tokens for c in counts), sum(c.num_hit_tokens for c in counts)
        )

    @property
    def preemptions(self) -> Preemptions:
        """How often requests lost their blocks."""
        return self._planner.preemptions

    def wake(self, *, now: float) -> Sequence[WorkerAction]:
        """Begin the pass that lingered."""
        self._lingers_until = None
        return self._go_on([], now)

    def handle(self, event: WorkerEvent, *, now: float) -> Sequence[WorkerAction]:
        """React to one event, then start the next pass if it is time."""
        actions: list[WorkerAction] = []
        if isinstance(event, PassResult):
            self._on_pass_result(event, actions, now)
        elif isinstance(event, PassFailed):
            flight = self._flights.popleft()
            actions += end_failed_pass(self._state, flight, event)
            self._waiting_dispatches = flight.dispatches + self._waiting_dispatches
        elif isinstance(event, Predicted):
            self._predictions.take(event)
        elif isinstance(event, PredictorKnown):
            self._predictions.is_on = event.is_known
        elif isinstance(event, TransferEvent):
            actions += on_transfer(self._state, event, self.settings.move_rounds)
        else:
            self._on_order(event, actions)
        return self._go_on(actions, now)

    def _go_on(self, actions: list[WorkerAction], now: float) -> Sequence[WorkerAction]:
        """Begin the next pass if none is in flight, or behind it; say what no pass would tell."""
        if self._lingers_until is None:
            if not self._flights:
                self._start_pass(actions, now)
            if self.settings.runs_ahead and len(self._flights) == 1:
                self._run_ahead(self._flights[0], actions, now)
        self._report_without_pass(actions, now)
        return [*self._state.outbox.flush(), *actions]

    # --- the scheduler's and the gateways' orders -------------------------------------

    def _on_order(
        self,
        event: Dispatch
        | CancelStream
        | GiveBack
        | Drain
        | ChangeRole
        | SchedulerConnected
        | GatewayGone
        | Tuned
        | PassCut,
        actions: list[WorkerAction],
    ) -> None:
        match event:
            case Dispatch():
                self._on_dispatch(event, actions)
            case CancelStream(key):
                self._state.cancel(key)
            case GatewayGone(gateway_id):
                for unit in self._state.units:
                    for key in [k for k in unit.sequences if k.gateway_id == gateway_id]:
                        self._state.cancel(key)
            case SchedulerConnected(wants, fencing_token):
                self._state.fencing_token = fencing_token
                self._wants = wants
                self._predictions.is_reported = wants.lengths
                self._work.is_on = wants.work
                self._state.finished.clear()  # the snapshot says it by leaving them out
                actions.append(self._snapshot())
                self._report_loads(actions, self._reported_at)
            case PassCut(num_steps):
                if self._flights:
                    cut_steps(self._state, self._flights[0].forward_pass, num_steps)
            case Tuned(gamma):
                self._planner.tune(gamma)
            case GiveBack(keys):
                actions.append(give_back(self._state, keys))
            case Drain() | ChangeRole():
                self._draining = self._draining or isinstance(event, Drain)
                let_go(self._state, event)
                actions.append(self._snapshot())

    def _on_dispatch(self, dispatch: Dispatch, actions: list[WorkerAction]) -> None:
        actions.append(Accepted(dispatch.dispatch_id))
        if dispatch.dispatch_id in self._seen_dispatches:
            return
        self._seen_dispatches[dispatch.dispatch_id] = None
        self._lingers_until = None
        if len(self._seen_dispatches) > self.settings.num_dispatches_remembered:
            del self._seen_dispatches[next(iter(self._seen_dispatches))]
        self._waiting_dispatches.append(dispatch.dispatch_id)
        for batch in dispatch.batches:
            for request in batch.requests:
                self._state.queue(request, batch.unit)

    # --- forward passes ---------------------------------------------------------------

    def _start_pass(self, actions: list[WorkerAction], now: float) -> None:
        items: list[PassItem] = []
        for unit in self._state.units:
            unit.host.settle()
            items += self._planner.plan(unit, now=now)
        settings = self.settings
        until = min(self._reported_at + settings.report_interval, self._planner.due_at)
        most = self._planner.most_steps(settings.max_steps)
        if most > 1 and self._step_time:  # no use in reserving blocks for steps beyond that
            most = min(most, max(1, 2 + int((until - now) / self._step_time)))
        self._launch(items, reserve_steps(self._state, items, most=most), until, actions)

    def _run_ahead(self, flight: Flight, actions: list[WorkerAction], now: float) -> None:
        """Plan the pass behind the one in flight, if that can be done without its tokens."""
        if not can_run_ahead(self._state, flight):
            return
        items: list[PassItem] = []
        with taken_for_granted(self._state, flight.forward_pass):
            for unit in self._state.units:
                items += self._planner.plan(unit, now=now, gently=True)
            self._launch(items, 1, inf, actions)

    def _launch(
        self, items: list[PassItem], num_steps: int, until: float, actions: list[WorkerAction]
    ) -> None:
        swapped_out, swapped_in = self._state.take_swaps()
        if not (items or swapped_out or swapped_in):
            return
        self._pass_id += 1
        forward_pass = ForwardPass(
            self._pass_id,
            tuple(items),
            num_steps,
            until,
            swapped_out,
            swapped_in,
            hidden=self._predictions.wanted(items),
        )
        flight = Flight(forward_pass, self._waiting_dispatches, self._planner.is_short)
        self._flights.append(flight)
        self._waiting_dispatches = []
        actions.append(forward_pass)

    def _on_pass_result(self, result: PassResult, actions: list[WorkerAction], now: float) -> None:
        drawn = {sampled.key: sampled for sampled in result.sampled}
        flight = self._flights.popleft()
        self._state.rates.ran(flight.forward_pass, result)
        running: list[SequenceState] = []
        num_tokens, num_steps = 0, 1
        in_pass = flight.land(self._state, result.pass_id)
        self._work.ran(in_pass, result)
        actions += end_swaps(self._state, flight.forward_pass.swapped_out)
        actions += end_returns(self._state, flight.forward_pass.swapped_in)
        for item, sequence in in_pass:
            num_tokens += len(item.token_ids)
            if sequence.is_over:
                self._state.finish(sequence, FinishReason.CANCELLED)
            elif item.start != sequence.num_computed:
                continue  # the pass that this one took for granted has failed
            elif item.sample:
                sequence.computed(len(item.token_ids))
                sampled = drawn[item.key]
                self._state.units[sequence.unit].cache(sequence)
                num_steps = 1 + len(sampled.before)
                self._state.drew(
                    sequence,
                    sampled,
                    now=now,
                    step=result.pass_time,
                    pace=self.settings.reader_pace,
                )
                reason = sequence.finish_reason(self._state.eos_token_ids, self._state.max_len)
                index = len(sequence.output) - 1
                num_cached = min(sequence.num_hit_tokens, sequence.num_prompt_tokens)
                self._state.outbox.add(sequence.request, index, sampled, reason, num_cached)
                self._after_token(sequence, reason, now)
                if reason is None:
                    running.append(sequence)
            else:
                sequence.computed(len(item.token_ids))
            if sequence.leaving is not None and sequence not in running:
                actions.append(stay(sequence))
        if result.hidden is not None:
            actions += self._predictions.ask(result.hidden)
        if num_tokens:
            self._planner.passed(result.pass_time, num_tokens, num_steps)
            self._step_time = result.pass_time
        if flight.forward_pass.num_steps > 1:
            return_steps(self._state, running)
        actions += leave_all(self._state, running)
        self._report_pass(result, flight, actions, now)

    def _report_pass(
        self, result: PassResult, flight: Flight, actions: list[WorkerAction], now: float
    ) -> None:
        if flight.dispatches or self._has_news or self._is_report_due(now):
            actions.append(self._end_forward(result.pass_time, flight.dispatches, now))
            if self.settings.linger and not self._flights and self._state.has_prompts_alone:
                self._lingers_until = now + self.settings.linger
        self._report_loads(actions, now)

    def _after_token(
        self, sequence: SequenceState, reason: FinishReason | None, now: float
    ) -> None:
        if reason is not None:
            self._planner.completed(sequence, now=now)
            self._state.finish(sequence, reason)
        elif sequence.hands_off:
            self._state.units[sequence.unit].move(sequence, Stage.HANDOFF)
            self._state.prefilled.append(sequence.held())

    # --- reports ----------------------------------------------------------------------

    @property
    def _has_news(self) -> bool:
        state = self._state
        return bool(state.prefilled or state.finished or state.answering or state.has_freed_blocks)

    def _is_report_due(self, now: float) -> bool:
        return now - self._reported_at >= self.settings.report_interval

    def _report_without_pass(self, actions: list[WorkerAction], now: float) -> None:
        """What ended, or could not begin, while no pass is in flight that would tell it."""
        if not self._flights and (self._has_news or self._waiting_dispatches):
            actions.append(self._end_forward(0.0, self._waiting_dispatches, now))
            self._waiting_dispatches = []
            if not self.num_held:
                self._report_loads(actions, now)

    def _end_forward(self, pass_time: float, dispatch_ids: Iterable[int], now: float) -> EndForward:
        self._reported_at = now
        if self._state.lets_go:
            self._state.prefilled += told_to_move(self._state)
        report = EndForward(
            pass_id=self._pass_id,
            pass_time=pass_time,
            dispatch_ids=tuple(dispatch_ids),
            loads=self._loads(now),
            prefilled=tuple(self._state.prefilled),
            finished=tuple(self._state.finished),
            answering=self._state.take_answering(),
            work=self._work.take(),
        )
        self._state.prefilled.clear()
        self._state.finished.clear()
        self._state.has_freed_blocks = False
        return report

    def _loads(self, now: float) -> tuple[UnitLoad, ...]:
        if self._wants.phases:
            return loads_with_phases(self._state, now=now)
        return self._state.loads

    def _report_loads(self, actions: list[WorkerAction], now: float) -> None:
        """What runs, at intervals; that nothing does, at once."""
        wants = self._wants
        is_due = now - self._load_reported_at >= wants.load_interval
        if is_due or (wants.load_interval < inf and not self.num_held):
            self._load_reported_at = now
            actions.append(load_report(self._state, Horizon(wants.num_steps, wants.step_tokens)))

    def _snapshot(self) -> Snapshot:
        self._state.prefilled.clear()  # the snapshot says it: awaiting_handoff
        sequences = [s for unit in self._state.units for s in unit.sequences.values()]
        self._state.listed_as_arriving = {s.key for s in sequences if s.stage is Stage.ARRIVING}
        held = [s.held() for s in sequences]
        return Snapshot(self._state.info, self._state.loads, tuple(held), self._draining)
