"""The worker's decisions: the contents of each forward pass, and the handling of its tokens.

A pass covers all DP units in lock-step. One is in flight at a time, with a second behind it if the
worker runs ahead. Blocks of a request are freed only when it is in no pass.
"""

from __future__ import annotations

from collections import abc, deque
from collections.abc import Callable, Iterable

from headway.cluster import UnitLoad, WorkerInfo
from headway.core.worker import arrivals, departures, drain
from headway.core.worker.events import (
    GatewayGone,
    KvAborted,
    KvArrived,
    KvContinued,
    KvOffered,
    KvSent,
    LeaderConnected,
    PassCut,
    PassFailed,
    Predicted,
    PredictorKnown,
    TransferEnded,
    WorkerAction,
    WorkerEvent,
)
from headway.core.worker.flight import Flight, Share, taken_for_granted
from headway.core.worker.lifecycle import Event
from headway.core.worker.passes import PlannedPass, StepPasses
from headway.core.worker.planner import Limits, PassPlanner
from headway.core.worker.prediction import Oracle
from headway.core.worker.reports import Reports
from headway.core.worker.room import Preemptions
from headway.core.worker.sequence import Sequence
from headway.core.worker.settings import WorkerSettings
from headway.core.worker.state import WorkerState
from headway.core.worker.unit import HashesOf, WorkerUnit
from headway.core.worker.worker_base import WorkerBase
from headway.cost.costs import Constant
from headway.cost.pass_time import Share as Work
from headway.forward_pass import ForwardPass, PassItem, PassResult, Sampled, plain
from headway.messages import (
    Accepted,
    CancelHandoff,
    CancelStream,
    ChangeRole,
    Dispatch,
    Drain,
    EndForward,
    GiveBack,
    Handoff,
    MeasuredCosts,
    Tuned,
    WantedReports,
)
from headway.policies.batching import Batching
from headway.policies.estimation import Estimation
from headway.request import StreamKey

__all__ = ["WorkerCore", "WorkerSettings"]

MakePasses = Callable[[WorkerState, PassPlanner, int], StepPasses]
"""Makes the passes of a worker, each of at most so many steps."""


class WorkerCore(WorkerBase):
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
        make_passes: MakePasses | None = None,
    ) -> None:
        """``make_passes``: what makes them of planned requests; None for one step a pass."""
        settings = settings or WorkerSettings()
        state = WorkerState(info, eos_token_ids, settings, oracle, estimation, hashes_of)
        super().__init__(settings, state)
        self._state.predictions.ranks_requests = batching.reads_lengths
        limits = Limits(settings.watermark, settings.max_running, self._state.max_len)
        self._planner = PassPlanner(batching, limits)
        self._planner.learn(self._state.costs.costs)
        self._reports = Reports(
            self._state,
            settings.report_interval,
            batching,
            self._planner.with_yielding if batching.yields_to_readers else None,
        )
        self._flights: deque[Flight] = deque()
        self._passes = (
            StepPasses()
            if make_passes is None
            else make_passes(self._state, self._planner, settings.max_steps)
        )
        self._pass_id = 0
        self._lingers_until: float | None = None
        self._waiting_dispatches: list[int] = []  # acknowledged, no pass planned since

    # --- views for the shell and metrics ----------------------------------------------

    @property
    def next_wakeup(self) -> float | None:
        """Instant at which a lingering pass begins."""
        return self._lingers_until

    @property
    def units(self) -> abc.Sequence[WorkerUnit]:
        """The DP units, for reading only."""
        return self._state.units

    @property
    def preemptions(self) -> Preemptions:
        """Preemption counts since the start."""
        return self._planner.preemptions

    @property
    def constants(self) -> tuple[Constant, ...]:
        """Return the constants that the policy uses, with their sources."""
        return self._planner.constants

    @property
    def measured_costs(self) -> MeasuredCosts | None:
        """Return the measured costs as last adopted; None before."""
        return self._state.costs.report

    def find(self, key: StreamKey) -> Sequence | None:
        """Return the request with that key, for reading only."""
        return self._state.find(key)

    # --- events -----------------------------------------------------------------------

    def wake(self, *, now: float) -> abc.Sequence[WorkerAction]:
        """Start the pass that lingered."""
        self._lingers_until = None
        return self._go_on([], now)

    def handle(self, event: WorkerEvent, *, now: float) -> abc.Sequence[WorkerAction]:
        """React to one event, then start the next pass if it is time."""
        actions: list[WorkerAction] = []
        self._passes.prepare(event, self._flights)
        if isinstance(event, PassResult):
            self._on_pass_result(event, actions, now)
        elif isinstance(event, PassFailed):
            flight = self._flights.popleft()
            actions += flight.fail(self._state, event)
            self._waiting_dispatches = flight.dispatches + self._waiting_dispatches
        elif isinstance(event, Predicted):
            for sequence in self._state.predictions.take(event, self._state.find):
                self._state.units[sequence.unit].changed[sequence.key] = None
        elif isinstance(event, PredictorKnown):
            self._state.predictions.is_on = event.is_known
        elif isinstance(event, GatewayGone):
            self._reports.doubt(event.gateway_id, now=now)
            self._state.cancel_all(event.gateway_id)
        elif not self._on_transfer(event, actions):
            self._on_order(event, actions)
        return self._go_on(actions, now)

    def _go_on(self, actions: list[WorkerAction], now: float) -> abc.Sequence[WorkerAction]:
        """Start the next pass if none is in flight (or plan one behind it).

        Report anything that no later pass will report.
        """
        if self._lingers_until is None:
            if not self._flights:
                self._start_pass(actions, now)
            if self.settings.runs_ahead and len(self._flights) == 1:
                self._run_ahead(self._flights[0], actions, now)
        if not self._flights and (self._state.news.is_any or self._waiting_dispatches):
            self._report(0.0, self._waiting_dispatches, actions, now)
            self._waiting_dispatches = []
            if not self.num_held:
                self._report_load(actions, now)
        if self.settings.tells_kv:
            actions += self._state.tell_kv()
        return [*self._state.sends(now), *actions]

    def _on_order(self, event: WorkerEvent, actions: list[WorkerAction]) -> None:
        """Take an order of the scheduler, a gateway or the backend."""
        state = self._state
        match event:
            case Dispatch():
                self._on_dispatch(event, actions)
            case CancelStream(key):
                state.cancel(key)
            case LeaderConnected(wants, fencing_token):
                state.fencing_token = fencing_token
                actions += [each for each in self._reports.greet(wants) if each is not None]
            case WantedReports():
                load = self._reports.want(event)
                actions += [] if load is None else [load]
            case PassCut(num_steps):
                clock = self._flights[0].clock if self._flights else None
                if clock is not None:
                    clock.cut(num_steps)
            case Tuned(gamma):
                self._planner.tune(gamma)
            case GiveBack(keys):
                actions.append(drain.give_back(state, keys))
            case Drain():
                state.lets_go = self._reports.draining = True
                actions.append(self._reports.snapshot())
            case ChangeRole(role):
                state.lets_go = True
                drain.change_role(state, role)
                actions.append(self._reports.snapshot())

    def _on_transfer(self, event: WorkerEvent, actions: list[WorkerAction]) -> bool:
        """Take news of KV that leaves or arrives; return whether the event was such."""
        state, most_rounds = self._state, self.settings.move_rounds
        match event:
            case Handoff():
                actions += departures.start_handoff(state, event, most_rounds)
            case CancelHandoff(key, target_worker_id):
                actions += departures.cancel(state, key, target_worker_id)
            case TransferEnded():
                actions.append(departures.end_transfer(state, event))
            case KvSent(key):
                actions += departures.end_round(state, key, most_rounds)
            case KvOffered(header):
                actions.append(arrivals.answer_offer(state, header))
            case KvContinued():
                actions.append(arrivals.answer_more(state, event))
            case KvArrived(key):
                arrivals.end_arrival(state, key, ok=True)
            case KvAborted(key):
                arrivals.end_arrival(state, key, ok=False)
            case _:
                return False
        return True

    def _on_dispatch(self, dispatch: Dispatch, actions: list[WorkerAction]) -> None:
        actions.append(Accepted(dispatch.dispatch_id))
        if not self._is_new(dispatch.dispatch_id):
            return
        self._lingers_until = None
        self._waiting_dispatches.append(dispatch.dispatch_id)
        for batch in dispatch.batches:
            for request in batch.requests:
                self._state.queue(request, batch.unit)

    # --- forward passes ---------------------------------------------------------------

    def _start_pass(self, actions: list[WorkerAction], now: float) -> None:
        planned = self._passes.go_on(self._reports.due_at, now)
        if planned is None:
            in_pass: list[Share] = []
            for unit in self._state.units:
                unit.host.settle()
                shares = self._planner.plan(unit, now=now)
                if not shares and unit.forget_wanted():
                    shares = self._planner.plan(unit, now=now)
                in_pass += shares
            self._state.note_plan()
            if in_pass:
                until = min(self._reports.due_at, self._planner.due_at)
                planned = self._passes.begin(in_pass, until, now)
            else:
                planned = PlannedPass((), in_pass)
        self._launch(planned, actions, now)

    def _run_ahead(self, flight: Flight, actions: list[WorkerAction], now: float) -> None:
        """Plan the pass behind the one in flight, if that is possible without its tokens."""
        if not flight.can_be_followed(self._state):
            return
        in_pass: list[Share] = []
        with taken_for_granted(flight.in_pass):
            for unit in self._state.units:
                in_pass += self._planner.plan(unit, now=now, gently=True)
            self._launch(PlannedPass([item for item, _ in in_pass], in_pass), actions, now)

    def _launch(self, planned: PlannedPass, actions: list[WorkerAction], now: float) -> None:
        state, in_pass = self._state, planned.in_pass
        swapped_out, swapped_in = state.take_swaps()
        if not (in_pass or swapped_out or swapped_in or planned.leap):
            return
        self._pass_id += 1
        forward_pass = ForwardPass(
            self._pass_id,
            tuple(planned.items),
            planned.leap,
            swapped_out,
            swapped_in,
            saved=() if swapped_out else state.take_saves(),  # who has no room goes first
            hidden=state.predictions.wanted(in_pass, now=now),
            ended=state.take_ended(),
        )
        leaving = [s for swap in swapped_out if (s := state.find(swap.key)) is not None]
        beside = swapped_in if self.settings.swaps_beside else ()
        returning = [s for swap in beside if (s := state.find(swap.key)) is not None]
        waiting, self._waiting_dispatches = self._waiting_dispatches, []
        is_short, clock = self._planner.is_short, planned.clock
        self._flights.append(
            Flight(forward_pass, in_pass, leaving, returning, waiting, is_short, clock)
        )
        actions.append(forward_pass)

    def _on_pass_result(self, result: PassResult, actions: list[WorkerAction], now: float) -> None:
        state, flight = self._state, self._flights.popleft()
        flight.complete(result.pass_id)
        state.rates.ran(flight.forward_pass, result)
        works = flight.works()
        self._measure(flight, works, result)
        actions += flight.end_swaps(state)
        drawn = {sampled.key: sampled for sampled in result.sampled}
        running: list[Sequence] = []
        for item, sequence in self._passes.complete(flight, result, now):
            if sequence.ended is not None:
                state.finish(sequence, sequence.ended)
            elif item.start != sequence.kv.num_computed:
                continue  # the pass before it has failed
            elif self._computed(item, sequence, drawn, result, now):
                running.append(sequence)
                continue
            if sequence.departure is not None:
                actions += departures.call_off(sequence)
        if result.hidden is not None:
            actions += state.predictions.ask(result.hidden, state.find)
        if num_tokens := sum(work.prefill_tokens + work.batch for work in works):
            self._planner.passed(result.pass_time, num_tokens, result.num_steps)
            self._reports.step_time = result.pass_time
        self._passes.settle(result.pass_time if num_tokens else None)
        actions += departures.leave_all(state, running)
        has_prompts = any(work.prefill_tokens for work in works)
        self._report_pass(result, flight, actions, now, has_prompts=has_prompts)

    def _computed(
        self,
        item: PassItem,
        sequence: Sequence,
        drawn: abc.Mapping[StreamKey, Sampled],
        result: PassResult,
        now: float,
    ) -> bool:
        """Note what a pass has computed for a request; return whether it decodes on."""
        if item.key in result.late:
            sequence.computed(len(item.token_ids) - 1)
            return bool(sequence.output)
        sequence.computed(len(item.token_ids))
        sequence.served += result.num_steps * result.pass_time
        if sequence.num_fills is not None:
            sequence.num_fills += 1
        if item.sample:
            sampled = drawn.get(item.key) or plain(item.key, result.num_steps)
            return self._draw(sequence, sampled, result.pass_time, now)
        if sequence.kv.hashes:
            self._state.units[sequence.unit].cache(sequence)
        return False

    def _measure(self, flight: Flight, works: abc.Sequence[Work], result: PassResult) -> None:
        """Measure what the pass cost, and tell the policy."""
        swaps = flight.forward_pass
        self._reports.work.ran(works, result)
        turns, costs = self._planner.turns, self._state.costs
        turns.pass_time, turns.score_per_token = costs.pass_time, self._state.rates.score_per_token
        has_swaps = bool(swaps.swapped_out or swaps.swapped_in)
        seconds = result.pass_time - result.score_time
        if has_swaps:
            return
        turns.took(works, seconds)
        if costs.ran(works, seconds, result.num_steps):
            self._planner.learn(self._state.costs.costs)

    def _draw(self, sequence: Sequence, sampled: Sampled, step: float, now: float) -> bool:
        """Add a request's drawn tokens; end or hand it off if due; return whether it continues."""
        state, unit = self._state, self._state.units[sequence.unit]
        if sampled.problem is not None:
            state.fail(sequence, sampled.problem.message, sampled.problem.code)
            return False
        unit.cache(sequence)
        state.drew(sequence, sampled, now=now, step=step)
        state.lives.drew(sequence)
        reason = state.send(sequence, sampled)
        if reason is not None:
            self._planner.completed(sequence, now=now)
            state.finish(sequence, reason)
        elif sequence.hands_off:
            unit.move(sequence, Event.PREFILLED)
            state.news.prefilled.append(sequence.held())
        return reason is None

    # --- reports ----------------------------------------------------------------------

    def _report_pass(
        self,
        result: PassResult,
        flight: Flight,
        actions: list[WorkerAction],
        now: float,
        *,
        has_prompts: bool,
    ) -> None:
        """Report a pass that changes what is dispatched here; the others at intervals.

        Each chunk of a prompt does: the next prompt is sent once less than a chunk is left.
        """
        reports, linger = self._reports, self.settings.linger
        if has_prompts or flight.dispatches or self._state.news.is_any or reports.is_due(now):
            report = self._report(result.pass_time, flight.dispatches, actions, now)
            if linger and not self._flights and _has_prompts_alone(report.loads):
                self._lingers_until = now + linger
        self._report_load(actions, now)

    def _report(
        self, pass_time: float, dispatch_ids: list[int], actions: list[WorkerAction], now: float
    ) -> EndForward:
        report = self._reports.end_forward(self._pass_id, pass_time, dispatch_ids, now)
        actions.append(report)
        return report

    def _report_load(self, actions: list[WorkerAction], now: float) -> None:
        if (report := self._reports.load_report(now)) is not None:
            actions.append(report)


def _has_prompts_alone(loads: abc.Sequence[UnitLoad]) -> bool:
    """Return whether prompts are left over and no decoding request would have to wait."""
    return any(x.queued_prefill_tokens for x in loads) and not any(x.num_running for x in loads)
