"""What workers say of the requests they hold, set against what the scheduler believed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from headway.cluster import UnitId, UnitLoad, WorkerInfo
from headway.core.scheduler.decode import DecodePlacer
from headway.core.scheduler.instance import Instance
from headway.core.scheduler.memory import Memory
from headway.core.scheduler.prefill import PrefillPool
from headway.core.scheduler.state import SchedulerState, Stage, Tracked
from headway.messages import (
    CancelStream,
    EndForward,
    FinishedRequest,
    HeldRequest,
    Lost,
    Snapshot,
)
from headway.request import FinishReason, StreamKey


class WorkerReports:
    """Takes reports in; what a worker says of itself wins, what has ended stays ended."""

    def __init__(
        self,
        state: SchedulerState,
        instances: dict[str, Instance],
        pools: Mapping[str, PrefillPool],
        decode: DecodePlacer,
        memory: Memory,
    ) -> None:
        self._state = state
        self._instances = instances
        self._pools = pools
        self._decode = decode
        self._memory = memory

    # --- passes -----------------------------------------------------------------------

    def end_forward(self, instance: Instance, report: EndForward, *, now: float) -> None:
        """What ended, what is prefilled, and the loads."""
        for finished in report.finished:
            self._finished(instance, finished, now)
        for held in report.prefilled:
            self._take(instance, held, now)
        if report.loads and all(_is_idle(load) for load in report.loads):
            self._sweep(instance)
        self._pools[instance.info.model].ended(instance, report, now=now)
        self._decode.retry()

    def _sweep(self, instance: Instance) -> None:
        """A worker that reports no load holds nothing: what we believe there has ended unseen."""
        for key in instance.keys:
            if not instance.is_unreported(key):
                self.end(self._state.tracked[key], but=instance.info.worker_id)
                self._state.lose([key], f"worker {instance.info.worker_id} no longer holds it")

    def _finished(self, instance: Instance, finished: FinishedRequest, now: float) -> None:
        key, worker_id = finished.key, instance.info.worker_id
        instance.finished(key, now=now)
        was_cancelled = finished.finish_reason is FinishReason.CANCELLED
        reason = f"worker {worker_id} has cancelled it"
        entry = self._state.tracked.get(key)
        if entry is None:
            if not self._state.has_ended(key):  # its gateway may yet submit it to a new leader
                self._state.end(key, Lost((key,), reason) if was_cancelled else None)
        elif not was_cancelled:
            self.end(entry, but=worker_id)
        elif entry.worker_id == worker_id:
            # Not by us: by its gateway, which will ignore this, or it was an older copy.
            self.end(entry, but=worker_id)
            self._state.lose([key], reason)
        elif entry.is_arriving_at(worker_id):
            self.end(entry)
            self._state.lose([key], f"its KV did not reach worker {worker_id}")
        else:
            entry.distrusted.add(worker_id)

    def handed_back(self, instance: Instance, keys: Iterable[StreamKey]) -> None:
        """What a worker has not begun takes its place in the window again."""
        for key in keys:
            entry = self._state.tracked.get(key)
            worker_id = instance.info.worker_id
            if entry is None or entry.worker_id != worker_id or entry.stage is not Stage.PLACED:
                continue
            instance.take_back(key, entry.unit, entry.num_tokens)
            if entry.request is None:  # only its gateway can submit it again
                self._end(entry)
                self._state.lose([key], f"worker {worker_id} drains and had not begun it")
                continue
            entry.stage, entry.worker_id, entry.adopted = Stage.WAITING, "", False
            self._state.changed(key)
            self._pools[entry.model].window.take_back(entry)

    def end(self, entry: Tracked, *, but: str = "") -> None:
        """The request is over: workers that have it are to stop, ``but`` this one knows."""
        target = entry.target.worker_id if entry.target is not None else ""
        for worker_id in dict.fromkeys((entry.worker_id, target)):
            if worker_id != but and worker_id in self._instances:
                self._state.tell_worker(worker_id, CancelStream(entry.key))
        self._end(entry)

    def _end(self, entry: Tracked) -> None:
        if entry.stage is Stage.WAITING:
            self._pools[entry.model].window.remove(entry.key)
        self._decode.remove(entry)
        if entry.worker_id in self._instances:
            self._instances[entry.worker_id].let_go(entry.key)
        self._state.end(entry.key)

    # --- snapshots --------------------------------------------------------------------

    def snapshot(self, worker_id: str, snapshot: Snapshot, *, now: float) -> None:
        """A worker is here (again), drains, or has another role.

        What it leaves out has not reached it yet, or its end is still to be told.
        """
        instance = self._instances.get(worker_id)
        if instance is not None and _has_changed_role(instance.info, snapshot.info):
            instance.change_role(snapshot.info)
        if instance is None or instance.info != snapshot.info:
            watermark = self._state.settings.kv_watermark
            if instance is not None:
                self.lose_all(instance, f"worker {worker_id} has changed", now=now)
            instance = self._instances[worker_id] = Instance(snapshot.info, watermark)
        instance.draining = snapshot.draining
        for held in snapshot.held:
            self._take(instance, held, now)
        instance.report(snapshot.loads, now=now)
        self._decode.retry()

    def _take(self, instance: Instance, held: HeldRequest, now: float) -> None:
        """A worker holds this request: believe it, unless it is to stop."""
        worker_id = instance.info.worker_id
        if self._state.has_ended(held.key):
            self._stop(instance, held)
            return
        entry = self._state.tracked.get(held.key) or self._adopt(instance, held, now)
        if entry is None:
            return
        if entry.worker_id != worker_id:
            reconcile = self._reconcile_arriving if held.arriving else self._reconcile
            reconcile(instance, entry, held)
        if entry.worker_id != worker_id or entry.stage is Stage.MOVING:
            return
        if held.awaiting_handoff:
            self._decode.add(entry, held, now=now)
            return
        entry.is_decoding = held.decoding
        if held.decoding:
            entry.num_tokens = held.num_tokens
        if entry.stage is Stage.PREFILLED:
            self._decode.stays(entry)

    def _stop(self, instance: Instance, held: HeldRequest) -> None:
        self._state.tell_worker(instance.info.worker_id, CancelStream(held.key))

    def _reconcile(self, instance: Instance, entry: Tracked, held: HeldRequest) -> None:
        """A worker holds what was believed elsewhere: the copy that is further ahead goes on."""
        here = UnitId(instance.info.worker_id, held.unit)
        match entry.stage:
            case Stage.MOVING if entry.is_arriving_at(here.worker_id):
                self._arrived(instance, entry, held)
            case Stage.MOVING if not entry.worker_id:
                self._found_source(instance, entry, held)
            case Stage.MOVING if entry.target is not None and entry.target[0] == here.worker_id:
                entry.distrusted.discard(here.worker_id)  # its source will say how that went
            case Stage.MOVING:
                self._stop(instance, held)
            case Stage.PREFILLED if instance.takes_decode and not held.awaiting_handoff:
                self._decode.hand_off(entry, here)  # it is there already: let go of the source's
            case Stage.PREFILLED:
                self._stop(instance, held)
            case Stage.PLACED if entry.adopted and self._is_behind(entry, held):
                self._stop(instance, held)
            case Stage.PLACED if entry.adopted and held.awaiting_handoff:
                self._found_source(instance, entry, held)
            case Stage.PLACED | Stage.WAITING:
                self._relocate(instance, entry, held)

    def _reconcile_arriving(self, instance: Instance, entry: Tracked, held: HeldRequest) -> None:
        """The request's KV is on the way to a worker by an earlier leader's order."""
        here = UnitId(instance.info.worker_id, held.unit)
        is_source_known = entry.stage is Stage.PREFILLED or entry.adopted
        match entry.stage:
            case Stage.MOVING if entry.target is not None and entry.target[0] == here.worker_id:
                return
            case Stage.WAITING:
                self._pools[entry.model].window.remove(entry.key)
                self._arrives(instance, entry, held)
            case Stage.PREFILLED | Stage.PLACED if is_source_known and instance.takes_decode:
                entry.relocating = entry.stage is Stage.PLACED
                self._decode.hand_off(entry, here)
            case _:
                self._stop(instance, held)

    def _adopt(self, instance: Instance, held: HeldRequest, now: float) -> Tracked | None:
        """An earlier leader's request; one whose gateway has submitted a later attempt stops."""
        worker_id = instance.info.worker_id
        entry = Tracked(
            key=held.key,
            request_id=held.request_id,
            model=instance.info.model,
            stage=Stage.PLACED,
            request=None,
            num_tokens=held.num_tokens,
            since=now,
            worker_id=worker_id,
            unit=held.unit,
            adopted=True,
        )
        if any(other.request is not None for other in self._state.others(entry)):
            self._state.end(held.key)
            self._state.tell_worker(worker_id, CancelStream(held.key))
            return None
        self._state.track(entry)
        if held.arriving:
            self._arrives(instance, entry, held)
        else:
            instance.hold(entry.key)
        self._recall(entry)
        return entry

    def _arrives(self, instance: Instance, entry: Tracked, held: HeldRequest) -> None:
        """An earlier leader's move, whose source has not been heard."""
        entry.stage, entry.worker_id, entry.adopted = Stage.MOVING, "", True
        entry.target = UnitId(instance.info.worker_id, held.unit)
        instance.reserve(entry.key, held.unit, held.num_tokens)
        self._state.changed(entry.key)

    def _arrived(self, instance: Instance, entry: Tracked, held: HeldRequest) -> None:
        entry.stage, entry.target = Stage.PLACED, None
        entry.worker_id, entry.unit = instance.info.worker_id, held.unit
        instance.landed(entry.key)
        instance.hold(entry.key)
        self._state.changed(entry.key)

    def _recall(self, entry: Tracked) -> None:
        """What an earlier leader knew of it beside: a move that it had ordered, or the last one."""
        saved = self._memory.take(entry.key)
        if saved is None:
            return
        entry.moved_at = saved.moved_at
        if saved.target is not None and saved.worker_id == entry.worker_id:
            entry.relocating = saved.relocating
            self._decode.resume(entry, saved.target)

    def _relocate(self, instance: Instance, entry: Tracked, held: HeldRequest) -> None:
        """It waited here, or was given to another worker, and runs there."""
        if entry.stage is Stage.WAITING:
            self._pools[entry.model].window.remove(entry.key)
        elif entry.worker_id in self._instances:
            self._instances[entry.worker_id].let_go(entry.key)
            self._state.tell_worker(entry.worker_id, CancelStream(entry.key))
        entry.stage, entry.unit, entry.adopted = Stage.PLACED, held.unit, True
        entry.worker_id = instance.info.worker_id
        self._state.changed(entry.key)
        instance.hold(entry.key)

    def _is_behind(self, entry: Tracked, held: HeldRequest) -> bool:
        """Whether the copy that was found first goes on, and this one stops."""
        found_first = self._instances[entry.worker_id].info
        if held.awaiting_handoff:
            return False  # a finished prefill is a gain, or the source of a move
        return held.num_tokens <= entry.num_tokens and found_first.role.decodes

    def _found_source(self, source: Instance, entry: Tracked, held: HeldRequest) -> None:
        """An earlier leader's move: its target was heard first, and now its source."""
        target = entry.target or UnitId(entry.worker_id, entry.unit)
        if entry.target is None and not self._instances[target.worker_id].info.role.decodes:
            self._relocate(source, entry, held)
            return
        self._instances[target.worker_id].let_go(entry.key)
        entry.worker_id, entry.unit = source.info.worker_id, held.unit
        entry.relocating = not held.awaiting_handoff
        source.hold(entry.key)
        self._decode.hand_off(entry, target)

    # --- losses -----------------------------------------------------------------------

    def lose_all(self, instance: Instance, reason: str, *, now: float) -> None:
        """Its worker is gone: all that it held or was being sent goes back to the gateways.

        So does what it finished of late: a gateway that has all its tokens knows it no more.
        What another worker was handing to it is that worker's still, until it says otherwise.
        """
        for key in instance.inbound_keys:
            moving = self._state.tracked.get(key)
            if moving is None:
                continue
            if moving.is_arriving_at(instance.info.worker_id):
                instance.hold(key)
            elif moving.stage is Stage.MOVING:
                moving.distrusted.add(instance.info.worker_id)
        since = now - self._state.settings.graces.finish
        lost = [k for k in instance.finished_since(since) if k not in self._state.tracked]
        for key in instance.keys:
            entry = self._state.tracked[key]
            # A target may have it by now; the next attempt must not run beside it.
            self.end(entry, but=instance.info.worker_id)
            lost.append(key)
        self._state.lose(lost, reason)


def _has_changed_role(before: WorkerInfo, after: WorkerInfo) -> bool:
    return before != after and replace(before, role=after.role) == after


def _is_idle(load: UnitLoad) -> bool:
    return not (load.queued_prefill_tokens or load.num_running or load.kv_tokens)
