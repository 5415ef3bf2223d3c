"""Workers' reports, reconciled with the scheduler's own view of each request.

After an election this is the takeover: a new leader starts without beliefs and adopts the reports.
A worker's word about itself wins, and an ended request stays ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum

from headway.cluster import UnitId, UnitLoad, WorkerInfo
from headway.core.scheduler.books import Books
from headway.core.scheduler.decode import DecodePlacer
from headway.core.scheduler.instance import Instance
from headway.core.scheduler.memory import LeaderMemory
from headway.core.scheduler.places import InWindow, Moving, OnUnit, Place, Prefilled, Tracked
from headway.core.scheduler.prefill import PrefillPool
from headway.core.scheduler.state import SchedulerState
from headway.messages import (
    CancelHandoff,
    CancelStream,
    EndForward,
    FinishedRequest,
    HeldRequest,
    Lost,
    Snapshot,
)
from headway.request import FinishReason, StreamKey


class Belief(Enum):
    """A belief about a request that another worker reports."""

    WAITING = "waiting"
    DISPATCHED = "dispatched to another worker"
    ADOPTED = "reported by another worker"
    PREFILLED = "prefilled on another worker"
    MOVING_HERE = "moving here"
    MOVING_ELSEWHERE = "moving elsewhere"
    EXPECTED_HERE = "moving here, source unknown"
    EXPECTED_ELSEWHERE = "moving elsewhere, source unknown"


class Said(Enum):
    """A worker's report of a request."""

    ARRIVING = "its KV is arriving"
    PREFILLED = "it waits for a handoff"
    RUNS = "it runs or is queued"


class Verdict(Enum):
    """The consequence of a report."""

    IGNORE = "nothing"
    TRUST = "nothing: its source will report the result of the move"
    STOP = "the reporting worker stops it"
    TAKE = "it is there; the other worker stops it"
    FURTHER = "the copy with more tokens continues, the other stops"
    EXPECT = "it is expected there, and not dispatched"
    TARGET = "it moves there, if the worker decodes; else it stops there"
    SOURCE = "it moves from there to where it was found first, if that worker decodes"


_ROWS = (  # for each Said
    (Belief.WAITING, Verdict.EXPECT, Verdict.TAKE, Verdict.TAKE),
    (Belief.DISPATCHED, Verdict.STOP, Verdict.TAKE, Verdict.TAKE),
    (Belief.ADOPTED, Verdict.TARGET, Verdict.SOURCE, Verdict.FURTHER),
    (Belief.PREFILLED, Verdict.TARGET, Verdict.STOP, Verdict.TARGET),
    (Belief.MOVING_HERE, Verdict.IGNORE, Verdict.TRUST, Verdict.TRUST),
    (Belief.MOVING_ELSEWHERE, Verdict.STOP, Verdict.STOP, Verdict.STOP),
    (Belief.EXPECTED_HERE, Verdict.IGNORE, Verdict.TAKE, Verdict.TAKE),
    (Belief.EXPECTED_ELSEWHERE, Verdict.STOP, Verdict.SOURCE, Verdict.SOURCE),
)
RECONCILE: Mapping[tuple[Belief, Said], Verdict] = {
    (belief, said): verdict
    for belief, *verdicts in _ROWS
    for said, verdict in zip(Said, verdicts, strict=True)
}


def reconcile(place: Place, held: HeldRequest, worker_id: str) -> Verdict:
    """Return what follows from a worker's report of an unexpected request."""
    return RECONCILE[_belief(place, worker_id), _said(held)]


def _belief(place: Place, worker_id: str) -> Belief:
    if isinstance(place, InWindow):
        return Belief.WAITING
    if isinstance(place, OnUnit):
        return Belief.ADOPTED if place.adopted else Belief.DISPATCHED
    if isinstance(place, Prefilled):
        return Belief.PREFILLED
    is_here = place.target.worker_id == worker_id
    if place.origin is None:
        return Belief.EXPECTED_HERE if is_here else Belief.EXPECTED_ELSEWHERE
    return Belief.MOVING_HERE if is_here else Belief.MOVING_ELSEWHERE


def _said(held: HeldRequest) -> Said:
    if held.arriving:
        return Said.ARRIVING
    return Said.PREFILLED if held.awaiting_handoff else Said.RUNS


class WorkerReports:
    """The executor of the verdicts on workers' reports."""

    def __init__(
        self,
        state: SchedulerState,
        instances: dict[str, Instance],
        books: Books,
        pools: Mapping[str, PrefillPool],
        decode: DecodePlacer,
        memory: LeaderMemory,
    ) -> None:
        self._state = state
        self._instances = instances
        self._books = books
        self._pools = pools
        self._decode = decode
        self._memory = memory

    # --- passes -----------------------------------------------------------------------

    def end_forward(self, instance: Instance, report: EndForward, *, now: float) -> None:
        """Take the admitted, ended and prefilled requests and the loads of a pass."""
        for said in report.admitted:
            admitted = self._state.tracked.get(said.key)
            if admitted is not None and admitted.worker_id == instance.info.worker_id:
                self._pools[admitted.model].admitted(admitted, said)
        for finished in report.finished:
            self._finished(instance, finished, now)
        for held in report.prefilled:
            self._take(instance, held, now)
        for key in report.begun:
            instance.begun(key)
        if report.loads and all(_is_idle(load) for load in report.loads):
            self._sweep(instance)
        self._pools[instance.info.model].ended(instance, report, now=now)
        self._decode.retry(instance.info.worker_id)

    def _sweep(self, instance: Instance) -> None:
        """End the requests believed to be on a worker that reports no load at all."""
        unreported = instance.unreported
        for key in instance.keys:
            if key not in unreported:
                self.end(self._state.tracked[key], but=instance.info.worker_id)
                self._state.lose([key], f"worker {instance.info.worker_id} no longer holds it")

    def _finished(self, instance: Instance, finished: FinishedRequest, now: float) -> None:
        key, worker_id = finished.key, instance.info.worker_id
        instance.finished(key, now=now)
        was_cancelled = finished.finish_reason is FinishReason.CANCELLED
        has_failed = finished.finish_reason is FinishReason.ERROR
        reason = f"worker {worker_id} has {'failed' if has_failed else 'cancelled'} it"
        entry = self._state.tracked.get(key)
        charges, num_output = (
            self._pools[instance.info.model].window.charges,
            finished.num_output_tokens,
        )
        if entry is not None:
            unit = UnitId(worker_id, finished.unit)
            self._pools[entry.model].used(entry, unit, finished.names)
        if entry is None:
            charges.reported(key, num_output)
        elif entry.worker_id == worker_id or not (was_cancelled or has_failed):
            charges.settle(entry, num_output, may_go_on=was_cancelled or has_failed)
        if entry is None:
            if not self._state.has_ended(key):  # its gateway may yet submit it to a new leader
                self._state.end(key, Lost((key,), reason) if was_cancelled or has_failed else None)
            elif has_failed:  # its end may not have reached its gateway
                self._state.lose([key], reason)
        elif has_failed and not entry.concerns(worker_id):
            return  # it waits to be computed again, or is computed elsewhere
        elif not was_cancelled:
            if not entry.concerns(worker_id):  # else its gateway would not take these tokens
                self._books.tell_source(entry, instance, finished.unit)
            self.end(entry, but=worker_id)
        elif entry.worker_id == worker_id:
            # By its gateway, which will ignore this, or it was an older copy.
            self.end(entry, but=worker_id)
            self._state.lose([key], reason)
        elif entry.is_arriving_at(worker_id):
            self.end(entry)
            self._state.lose([key], f"its KV did not reach worker {worker_id}")
        else:
            entry.distrusted.add(worker_id)

    def handed_back(self, instance: Instance, keys: Iterable[StreamKey]) -> None:
        """Return requests that a worker has not begun to their places in the window."""
        for key in keys:
            entry = self._state.tracked.get(key)
            worker_id = instance.info.worker_id
            if entry is None or entry.worker_id != worker_id or not isinstance(entry.place, OnUnit):
                continue
            if entry.request is None:  # only its gateway can submit it again
                instance.take_back(key, entry.place.unit.unit, entry.num_tokens)
                self._end(entry)
                self._state.lose([key], f"worker {worker_id} drains and had not begun it")
                continue
            self._books.give_back(entry)
            self._pools[entry.model].window.take_back(entry)

    def end(self, entry: Tracked, *, but: str = "") -> None:
        """End the request; stop it on all workers that have it except ``but``, which knows."""
        self._stop_all(entry, but=but)
        self._end(entry)

    def _stop_all(self, entry: Tracked, *, but: str) -> None:
        target = entry.target.worker_id if entry.target is not None else ""
        for worker_id in dict.fromkeys((entry.worker_id, target)):
            if worker_id != but and worker_id in self._instances:
                self._state.tell_worker(worker_id, CancelStream(entry.key))

    def _end(self, entry: Tracked) -> None:
        window = self._pools[entry.model].window
        window.charges.ended(entry)
        if isinstance(entry.place, InWindow):
            window.remove(entry.key)
        self._books.close(entry)

    # --- snapshots --------------------------------------------------------------------

    def snapshot(self, worker_id: str, snapshot: Snapshot, *, now: float) -> None:
        """Take the snapshot of a worker that has connected, drains, or has another role.

        A request missing from it has not reached the worker yet, or its end is still to be
        reported.
        """
        instance = self._instances.get(worker_id)
        if instance is not None and _has_changed_role(instance.info, snapshot.info):
            instance.change_role(snapshot.info)
        if instance is None or instance.info != snapshot.info:
            watermark = self._state.settings.kv_watermark
            if instance is not None:
                is_same = snapshot.info.process_id == instance.info.process_id != ""
                reason = f"worker {worker_id} has changed"
                self.lose_all(instance, reason, now=now, is_alive=is_same)
            instance = self._instances[worker_id] = Instance(
                snapshot.info, watermark, self._state.limits
            )
        instance.draining = snapshot.draining
        for held in snapshot.held:
            self._take(instance, held, now)
        instance.report(snapshot.loads, now=now)
        self._decode.retry(worker_id)

    def _take(self, instance: Instance, held: HeldRequest, now: float) -> None:
        """Accept a worker's report that it holds a request.

        A request that has ended, or is on a unit that the worker lacks, stops there, and one that
        is not known if the worker has named enough of them.
        """
        worker_id = instance.info.worker_id
        if self._state.has_ended(held.key) or held.unit >= instance.info.num_units:
            self._stop(instance, held)
            return
        entry = self._state.tracked.get(held.key)
        if entry is None and instance.is_full_of_claims:
            self._stop(instance, held)
            return
        entry = entry or self._adopt(instance, held, now)
        if entry is None:
            return
        entry.reporters.add(worker_id)
        if entry.worker_id != worker_id:
            self._apply(reconcile(entry.place, held, worker_id), instance, entry, held)
        if entry.worker_id != worker_id or isinstance(entry.place, Moving):
            return
        if held.awaiting_handoff:
            self._decode.add(entry, held, now=now)
            return
        self._books.run_on(entry, decoding=held.decoding)
        if held.decoding:
            entry.num_tokens = held.num_tokens
            instance.begun(held.key)  # the report of it may be lost

    def _adopt(self, instance: Instance, held: HeldRequest, now: float) -> Tracked | None:
        """Adopt an earlier leader's request, or stop it if a later attempt was submitted."""
        here = UnitId(instance.info.worker_id, held.unit)
        entry = Tracked(
            held.key,
            held.request_id,
            instance.info.model,
            Moving(None, here) if held.arriving else OnUnit(here, adopted=True),
            None,
            held.num_tokens,
            now,
        )
        if any(other.request is not None for other in self._state.others(entry)):
            self._state.end(held.key)
            self._stop(instance, held)
            return None
        self._books.open(entry)
        self._recall(entry)
        return entry

    def _recall(self, entry: Tracked) -> None:
        """Restore an earlier leader's record of it: its last move, or one in progress."""
        saved = self._memory.take(entry.key)
        if saved is None:
            return
        entry.moved_at = saved.moved_at
        if saved.target is not None and saved.worker_id == entry.worker_id:
            self._decode.resume(entry, saved.target, relocating=saved.relocating)

    # --- carrying out verdicts --------------------------------------------------------

    def _apply(
        self, verdict: Verdict, instance: Instance, entry: Tracked, held: HeldRequest
    ) -> None:
        match verdict:
            case Verdict.IGNORE:
                return
            case Verdict.TRUST:
                entry.distrusted.discard(instance.info.worker_id)
            case Verdict.STOP:
                self._stop(instance, held)
            case Verdict.TAKE:
                self._take_over(instance, entry, held)
            case Verdict.FURTHER:
                self._let_the_further_go_on(instance, entry, held)
            case Verdict.EXPECT:
                self._pools[entry.model].window.remove(entry.key)
                self._books.await_arrival(entry, UnitId(instance.info.worker_id, held.unit))
            case Verdict.TARGET:
                self._move_to(instance, entry, held)
            case Verdict.SOURCE:
                self._move_from(instance, entry, held)

    def _stop(self, instance: Instance, held: HeldRequest) -> None:
        self._state.tell_worker(instance.info.worker_id, CancelStream(held.key))

    def _take_over(self, instance: Instance, entry: Tracked, held: HeldRequest) -> None:
        if isinstance(entry.place, InWindow):
            self._pools[entry.model].window.remove(entry.key)
        self._stop_all(entry, but=instance.info.worker_id)
        unit = UnitId(instance.info.worker_id, held.unit)
        self._books.find(entry, unit, decoding=held.decoding)

    def _let_the_further_go_on(self, instance: Instance, entry: Tracked, held: HeldRequest) -> None:
        current = self._instances[entry.worker_id].info
        if held.num_tokens <= entry.num_tokens and current.role.decodes:
            self._stop(instance, held)
        else:
            self._take_over(instance, entry, held)

    def _move_to(self, target: Instance, entry: Tracked, held: HeldRequest) -> None:
        if target.takes_decode:
            self._decode.hand_off(entry, UnitId(target.info.worker_id, held.unit))
        else:
            self._stop(target, held)

    def _move_from(self, source: Instance, entry: Tracked, held: HeldRequest) -> None:
        target = entry.target or entry.at
        assert target is not None, "it has been found first at its target"
        if not self._instances[target.worker_id].info.role.decodes:
            self._take_over(source, entry, held)
            return
        unit = UnitId(source.info.worker_id, held.unit)
        origin: OnUnit | Prefilled = OnUnit(unit, adopted=True, decoding=held.decoding)
        if held.awaiting_handoff:
            origin = Prefilled(unit, adopted=True)
        self._books.find_source(entry, origin)
        self._decode.hand_off(entry, target)

    # --- losses -----------------------------------------------------------------------

    def lose_all(
        self, instance: Instance, reason: str, *, now: float, is_alive: bool = False
    ) -> None:
        """Return all requests that a lost worker held or was being sent to their gateways.

        This includes requests that it has just finished: a gateway with all the tokens ignores the
        message. A request that another worker was handing to it stays with that worker. One whose
        dispatch it never acknowledged is not told of a death: the worker did not die of it.
        """
        for key in instance.inbound_keys:
            moving = self._state.tracked.get(key)
            if moving is None:
                continue
            if moving.is_arriving_at(instance.info.worker_id):
                assert moving.target is not None, "it arrives"
                instance.hold(key, moving.target.unit)
            elif isinstance(moving.place, Moving):
                moving.distrusted.add(instance.info.worker_id)
                self._cancel_handoff(moving, instance.info.worker_id)
        since = now - self._state.settings.graces.finish
        lost = [k for k in instance.finished_since(since) if k not in self._state.tracked]
        never_taken: list[StreamKey] = []
        not_taken = instance.not_taken
        for key in instance.keys:
            entry = self._state.tracked[key]
            # A target may have it by now; two attempts must not run at once.
            self.end(entry, but=instance.info.worker_id)
            (never_taken if key in not_taken else lost).append(key)
        if is_alive:
            self._state.lose(lost, reason)
        else:
            self._state.lose_process(lost, reason, instance.info)
        self._state.lose(never_taken, reason)

    def _cancel_handoff(self, entry: Tracked, target_id: str) -> None:
        """Tell the source: a target that hangs keeps its connections open."""
        if entry.worker_id in self._instances:
            self._state.tell_worker(entry.worker_id, CancelHandoff(entry.key, target_id))


def _has_changed_role(before: WorkerInfo, after: WorkerInfo) -> bool:
    return before != after and replace(before, role=after.role) == after


def _is_idle(load: UnitLoad) -> bool:
    return not (load.queued_prefill_tokens or load.num_running or load.kv_tokens)
