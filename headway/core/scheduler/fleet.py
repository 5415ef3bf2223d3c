"""The fleet as autoscalers see it, from the leading scheduler's books."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from headway.cluster import Role
from headway.core.scheduler.instance import Instance
from headway.core.scheduler.windows import TenantWindows
from headway.messages import PassWork
from headway.policies.scaling.protocol import Fleet, PoolLoad, WorkSample

_ROLES = (Role.PREFILL, Role.DECODE, Role.CONVERTIBLE, Role.UNIFIED)


@dataclass(frozen=True, slots=True)
class QueuedLoad:
    """Requests that wait for a dispatch, with their tokens, and for a decode unit."""

    num_requests: int
    num_tokens: int
    num_for_decode: int

    @classmethod
    def of(cls, window: TenantWindows, num_for_decode: int = 0) -> QueuedLoad:
        """Return what waits in a window; no instance is started for what yields by its class."""
        yielding = window.yielding
        return cls(
            window.num_waiting - yielding.num_requests,
            window.backlog_tokens - yielding.num_tokens,
            num_for_decode,
        )


_NOBODY = QueuedLoad(0, 0, 0)


class FleetMeter:
    """Sums over each role's workers; busy shares cover the time between two readings (s)."""

    def __init__(self, instances: Mapping[str, Instance]) -> None:
        self._instances = instances
        self._busy: dict[str, float] = {}
        self._work: dict[tuple[str, str], PassWork] = {}
        self._read_at: float | None = None

    def passed(self, worker_id: str, pass_time: float) -> None:
        """Add the time that a worker has computed, seconds."""
        if isfinite(pass_time) and pass_time > 0:
            self._busy[worker_id] = self._busy.get(worker_id, 0.0) + pass_time

    def worked(self, instance: Instance, work: Iterable[PassWork]) -> None:
        """Add what a worker's passes computed; passes that mix both stages count for neither."""
        for each in work:
            stage = _stage(instance.info.role, each)
            if stage:
                key = instance.info.worker_id, stage
                self._work[key] = self._work.get(key, PassWork()).plus(each)

    def read(self, waiting: Mapping[str, QueuedLoad], *, now: float) -> dict[str, Fleet]:
        """Return, by model, all workers that do not drain, and the requests waiting for them."""
        elapsed = now - self._read_at if self._read_at is not None else 0.0
        models = {instance.info.model for instance in self._instances.values()} | waiting.keys()
        fleets = {
            model: self._fleet(model, waiting.get(model, _NOBODY), elapsed)
            for model in sorted(models)
        }
        self._busy.clear()
        self._work.clear()
        self._read_at = now
        return fleets

    def _fleet(self, model: str, waiting: QueuedLoad, elapsed: float) -> Fleet:
        """Count waiting prompts with the prefill pool."""
        prefill, decode, convertible, unified = (
            self._pool(model, role, elapsed) for role in _ROLES
        )
        return Fleet(
            replace(
                prefill,
                num_requests=prefill.num_requests + waiting.num_requests,
                backlog_tokens=prefill.backlog_tokens + waiting.num_tokens,
            ),
            replace(decode, num_requests=decode.num_requests + waiting.num_for_decode),
            convertible,
            unified,
            tuple(self._samples(model)),
        )

    def _samples(self, model: str) -> Iterable[WorkSample]:
        for (worker_id, stage), work in sorted(self._work.items()):
            instance = self._instances.get(worker_id)
            if instance is not None and instance.info.model == model:
                yield WorkSample(worker_id, stage, work)

    def _pool(self, model: str, role: Role, elapsed: float) -> PoolLoad:
        there = [
            instance
            for instance in self._instances.values()
            if instance.info.role is role and instance.info.model == model
            if not instance.draining
        ]
        return PoolLoad(
            num_ready=len(there),
            num_requests=sum(len(instance.keys) for instance in there),
            backlog_tokens=sum(max(instance.load.queued_tokens, 0) for instance in there),
            busy=self._share(there, elapsed),
            memory=_memory(there),
        )

    def _share(self, there: Sequence[Instance], elapsed: float) -> float:
        if not there or elapsed <= 0:
            return 0.0
        return sum(self._busy_share(instance, elapsed) for instance in there) / len(there)

    def _busy_share(self, instance: Instance, elapsed: float) -> float:
        """Return a worker's busy share. A decoding worker counts as busy: it reports no passes."""
        if instance.info.role.decodes and instance.load.num_decoding:
            return 1.0
        return min(1.0, self._busy.get(instance.info.worker_id, 0.0) / elapsed)


def _stage(role: Role, work: PassWork) -> str:
    if role is Role.PREFILL:
        return "prefill" if work.prefill_tokens and not work.batch else ""
    return "decode" if role.decodes and not work.prefill_tokens else ""


def _memory(there: Sequence[Instance]) -> float:
    """Return the share of KV blocks in use or promised, 0 to 1."""
    num_blocks = sum(i.info.num_units * i.info.num_blocks for i in there)
    free = sum(max(i.num_free_blocks(unit), 0) for i in there for unit in range(i.info.num_units))
    return max(0.0, 1 - free / num_blocks) if num_blocks else 0.0
