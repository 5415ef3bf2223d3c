"""The worker's reports to the scheduler: ends of passes, loads, and snapshots."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from math import inf, nan
from typing import Protocol

from headway.cluster import UnitLoad
from headway.core.defaults import DOUBTFUL
from headway.core.worker.costs import has_drifted
from headway.core.worker.drain import newly_movable
from headway.core.worker.lifecycle import Stage
from headway.core.worker.sequence import Sequence
from headway.core.worker.state import WorkerState
from headway.core.worker.unit import WorkerUnit
from headway.core.worker.work import WorkMeter
from headway.cost.costs import Constant
from headway.messages import (
    EndForward,
    FinishedRequest,
    LoadReport,
    RunningRequests,
    Snapshot,
    UsedConstant,
    WantedReports,
)
from headway.policies.batching import Batching
from headway.policies.readers import constants_of
from headway.policies.rescheduling import Horizon, simulate_future
from headway.request import FinishReason, Phase, StreamKey

_ASK_AFTER = 0.75
"""Share of the time between two load reports: answers are there by the next, and still new."""
_MOST_ENDED = 1024
_MOST_NAMES = 32_768
"""Names of cached beginnings in a snapshot: half a megabyte."""


class WithYielding(Protocol):
    """Adds to a unit's load what yields to a reader's first token that comes now."""

    def __call__(self, unit: WorkerUnit, load: UnitLoad, *, now: float) -> UnitLoad:
        """Return the load."""


class Reports:
    """Reports on one worker, at least every ``interval`` seconds.

    ``batching``: it says how many tokens an answer is fresh for (PASCAL, Algorithm 2: ``a_i``), and
    by which constants it decides.
    """

    def __init__(
        self,
        state: WorkerState,
        interval: float,
        batching: Batching,
        with_yielding: WithYielding | None = None,
    ) -> None:
        """``with_yielding``: None where nothing yields to a newcomer."""
        self._state = state
        self._with_yielding = with_yielding
        self._batching = batching
        self._constants: tuple[Constant, ...] = ()
        self._interval = interval
        self._wants = WantedReports()
        self._reported_at = self._load_reported_at = 0.0
        self._ended: deque[tuple[float, FinishedRequest]] = deque(maxlen=_MOST_ENDED)
        self._doubted: dict[StreamKey, FinishedRequest] = {}
        self.work = WorkMeter()
        self.draining = False
        self.step_time = 0.0
        """Seconds of the last decode step."""

    @property
    def due_at(self) -> float:
        """Instant of the next report."""
        return self._reported_at + self._interval

    def is_due(self, now: float) -> bool:
        """Return whether a report is due although no event asks for it."""
        return now - self._reported_at >= self._interval

    def greet(self, wants: WantedReports) -> tuple[Snapshot, LoadReport | None]:
        """Return the snapshot for a new scheduler, and the load if it wants that now."""
        load = self.want(wants)
        # The snapshot reports what has ended by omitting it; a doubt may have met no leader.
        self._state.news.finished[:] = self._doubted.values()
        return self.snapshot(), load

    def want(self, wants: WantedReports) -> LoadReport | None:
        """Report this from now on; return the load if that is wanted now."""
        self._wants = wants
        self._state.predictions.is_reported = wants.lengths
        self.work.is_on = wants.work
        self._ask_before_report()
        return self.load_report(self._reported_at)

    def _ask_before_report(self) -> None:
        """Have lengths predicted shortly before the next load report, which shows them."""
        ask_after = _ASK_AFTER * self._wants.load_interval
        self._state.predictions.ask_at = self._load_reported_at + ask_after

    def end_forward(
        self, pass_id: int, pass_time: float, dispatch_ids: Iterable[int], now: float
    ) -> EndForward:
        """Return the report of a pass, with all news since the last one."""
        state, news = self._state, self._state.news
        self._reported_at = now
        if state.lets_go:
            state.sync()
            news.prefilled += newly_movable(state)
        ended = (each for each in news.finished if each.key not in self._doubted)
        by_itself = (each for each in ended if each.finish_reason is not FinishReason.CANCELLED)
        self._ended += [(now, each) for each in by_itself]
        answering = [state.find(key) for key in news.answering]
        report = EndForward(
            pass_id=pass_id,
            pass_time=pass_time,
            dispatch_ids=tuple(dispatch_ids),
            loads=self._loads(now),
            prefilled=tuple(news.prefilled),
            finished=tuple(news.finished),
            answering=tuple(
                s.held()
                for s in answering
                if s is not None and s.ended is not FinishReason.CANCELLED
            ),
            work=self.work.take(),
            costs=state.costs.take_news(),
            admitted=tuple([each for unit in state.units for each in unit.admitted]),
            constants=self._new_constants(),
            begun=tuple(news.begun),
        )
        news.clear()
        for unit in state.units:
            unit.admitted.clear()
        return report

    def doubt(self, gateway_id: str, *, now: float) -> None:
        """Report again, as failed, what has just ended for a gateway whose stream has broken.

        The last tokens, or the failure, may be lost, and no other message would tell the gateway of
        the end. What a newer leader has sent here again is cancelled with its stream, and that is
        reported.
        """
        ended, self._ended = self._ended, deque(maxlen=_MOST_ENDED)
        for at, finished in ended:
            if at < now - DOUBTFUL or self._state.find(finished.key) is not None:
                continue
            if finished.key.gateway_id == gateway_id:
                failed = replace(finished, finish_reason=FinishReason.ERROR)
                self._state.news.finished.append(failed)
                self._doubted[failed.key] = failed
            else:
                self._ended.append((at, finished))
        while len(self._doubted) > _MOST_ENDED:
            del self._doubted[next(iter(self._doubted))]

    def _loads(self, now: float) -> tuple[UnitLoad, ...]:
        state, loads = self._state, self._state.loads
        if self._wants.phases:
            state.sync()
            fresh = self._batching.fresh_tokens
            loads = tuple(_with_phases(unit, now, fresh) for unit in state.units)
        if self._with_yielding is None:
            return loads
        pairs = zip(state.units, loads, strict=True)
        return tuple([self._with_yielding(unit, load, now=now) for unit, load in pairs])

    def load_report(self, now: float) -> LoadReport | None:
        """Return the running requests at intervals, an idle state at once, else None."""
        wants, units = self._wants, self._state.units
        is_due = now - self._load_reported_at >= wants.load_interval
        if not is_due:
            is_empty = not any(unit.sequences for unit in units)
            if wants.load_interval == inf or not is_empty:
                return None
        self._load_reported_at = now
        self._ask_before_report()
        self._state.sync()
        horizon = Horizon(wants.num_steps, wants.step_tokens)
        running = tuple(_running_requests(unit, horizon) for unit in units)
        return LoadReport(running, self.step_time)

    def snapshot(self) -> Snapshot:
        """Return everything held; the outcome of an arrival is reported later."""
        state = self._state
        state.news.prefilled.clear()  # the snapshot reports it: awaiting_handoff
        sequences = [s for unit in state.units for s in unit.sequences.values()]
        for sequence in sequences:
            if sequence.stage is Stage.ARRIVING:
                sequence.is_told = True
        held = tuple([s.held() for s in sequences])
        state.costs.take_news()  # the snapshot reports it
        most = _MOST_NAMES // len(state.units)
        prefixes = tuple([tier for unit in state.units for tier in unit.prefixes(most)])
        self._constants = ()
        return Snapshot(
            state.info,
            state.loads,
            held,
            self.draining,
            state.costs.report,
            prefixes,
            self._new_constants(),
        )

    def _new_constants(self) -> tuple[UsedConstant, ...]:
        """Return the constants of the order if one has drifted since they were last reported."""
        known, now = self._constants, constants_of(self._batching)
        if len(known) == len(now) and not any(map(_is_news, known, now)):
            return ()
        self._constants = now
        return tuple(UsedConstant(name, value, source.value) for name, value, source in now)


def _is_news(known: Constant, now: Constant) -> bool:
    return known._replace(value=0.0) != now._replace(value=0.0) or has_drifted(
        known.value, now.value
    )


def _with_phases(unit: WorkerUnit, now: float, fresh_tokens: int) -> UnitLoad:
    """Return the unit's load with ``r_i``, ``a_i`` and ``t_i`` of PASCAL."""
    num_reasoning = num_fresh = 0
    is_on_schedule = True
    for sequence in unit.sequences.values():
        if sequence.phase is not Phase.ANSWERING:
            num_reasoning += sequence.request.reasons
            continue
        num_fresh += sequence.num_phase_tokens < fresh_tokens
        if not _is_on_schedule(sequence, now):
            is_on_schedule = False
    return replace(
        unit.load(),
        num_reasoning=num_reasoning,
        num_fresh_answering=num_fresh,
        is_on_schedule=is_on_schedule,
    )


def _is_on_schedule(sequence: Sequence, now: float) -> bool:
    """Return whether its reader, if it has one, has unread tokens or is about to get the first."""
    if not sequence.is_read:
        return True
    if sequence.opens_answer:
        return sequence.running
    return sequence.reader.in_hand_until >= now


_ON_UNIT = (
    Stage.RUNNING,
    Stage.SWAPPING_IN,
    Stage.ENDING,
    Stage.WAITING,
    Stage.SWAPPING_OUT,
)


def _running_requests(unit: WorkerUnit, horizon: Horizon) -> RunningRequests:
    """Return what the unit decodes or will go on with once there is memory."""
    here = [s for s in unit.sequences.values() if s.stage in _ON_UNIT]
    running = [s for s in here if s.decoding]
    lost = [s for s in here if s.num_lost]
    num_tokens = tuple(s.kv.num_computed for s in running)
    remaining = tuple(_remaining(s) for s in running)
    keys = tuple(s.key for s in running)
    lost_tokens = [s.num_lost for s in lost]
    future = simulate_future(
        (*num_tokens, *lost_tokens), (*remaining, *map(_remaining, lost)), horizon
    )
    return RunningRequests(
        unit.unit, keys, num_tokens, remaining, tuple(future.tolist()), sum(lost_tokens)
    )


def _remaining(sequence: Sequence) -> float:
    remaining = sequence.predicted_remaining
    return nan if remaining is None else remaining
