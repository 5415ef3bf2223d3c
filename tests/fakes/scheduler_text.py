"""A scheduler core for tests: events in at times that the test gives, actions out, kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from headway.cluster import Role, UnitLoad, WorkerInfo
from headway.core.scheduler.core import SchedulerCore
from headway.core.scheduler.events import (
    Decision,
    Elected,
    GatewayConnected,
    Note,
    SchedulerAction,
    SchedulerEvent,
    SendToGateway,
    SendToWorker,
    WorkerGone,
    WorkerReported,
)
from headway.core.scheduler.settings import SchedulerSettings
from headway.messages import (
    Accepted,
    Admission,
    CancelStream,
    Dispatch,
    EndForward,
    FinishedRequest,
    Handoff,
    HandoffResult,
    HeldRequest,
    Lost,
    Placed,
    Rejected,
    Snapshot,
)
from headway.request import FinishReason, Request, SamplingParams, StreamKey
from headway.service_class import NO_STANDING, Standing
from tests.fakes.requests import a_request

M = TypeVar("M")


def key(stream_id: int, gateway_id: str = "g") -> StreamKey:
    return StreamKey(gateway_id, stream_id)


def make_request(
    stream_id: int, num_prompt: int = 10, *, max_tokens: int = 5, **fields: Any
) -> Request:
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    fields = {"arrival_at": stream_id / 1000, **fields}
    return a_request(stream_id, range(1, num_prompt + 1), sampling, **fields)


def make_info(
    worker_id: str,
    role: Role = Role.PREFILL,
    *,
    units: int = 1,
    chunk: int = 100,
    blocks: int = 100,
    block_size: int = 10,
    max_len: int = 10_000,
    model: str = "m",
) -> WorkerInfo:
    return WorkerInfo(
        worker_id, f"{worker_id}:1", role, model, units, chunk, block_size, blocks, max_len, 8
    )


def idle_loads(info: WorkerInfo) -> tuple[UnitLoad, ...]:
    return tuple(UnitLoad(unit, 0, 0, 0, info.num_blocks) for unit in range(info.num_units))


class SchedulerHarness:
    """Keeps the time; ``new`` are the actions of the last step, ``log`` all of them."""

    def __init__(self, settings: SchedulerSettings | None = None, *, elect: bool = True) -> None:
        self.core = SchedulerCore(settings)
        self.now = 1.0
        self.log: list[SchedulerAction] = []
        self.new: list[SchedulerAction] = []
        self.infos: dict[str, WorkerInfo] = {}
        self.finished: set[int] = set()
        if elect:
            self.post(Elected(1, ()))
            self.post(GatewayConnected("g"))

    # --- steps ------------------------------------------------------------------------

    def post(self, event: SchedulerEvent, *, after: float = 0.0) -> list[SchedulerAction]:
        self.now += after
        self.new = list(self.core.handle(event, now=self.now))
        self.log += self.new
        return self.new

    def wait(self, seconds: float) -> list[SchedulerAction]:
        """Let time pass; the core is woken whenever it asked for it."""
        until, self.new = self.now + seconds, []
        for _ in range(10_000):
            wakeup = self.core.next_wakeup
            if wakeup is None or wakeup > until:
                self.now = until
                return self.new
            self.now = max(self.now, wakeup)
            actions = list(self.core.wake(now=self.now))
            self.log += actions
            self.new += actions
        raise AssertionError("the core asks to be woken without end")

    def connect(
        self,
        info: WorkerInfo,
        *held: HeldRequest,
        loads: tuple[UnitLoad, ...] | None = None,
        draining: bool = False,
    ) -> list[SchedulerAction]:
        self.infos[info.worker_id] = info
        snapshot = Snapshot(info, loads or idle_loads(info), held, draining)
        return self.post(WorkerReported(info.worker_id, snapshot))

    def submit(self, stream_id: int, num_prompt: int = 10, **fields: object) -> Request:
        request = make_request(stream_id, num_prompt, **fields)  # type: ignore[arg-type]  # fields by name
        self.post(request)
        return request

    def accept(self, worker_id: str, dispatch_id: int | None = None) -> list[SchedulerAction]:
        if dispatch_id is None:
            dispatch_id = self.dispatches(worker_id)[-1].dispatch_id
        return self.post(WorkerReported(worker_id, Accepted(dispatch_id)))

    def end_forward(
        self,
        worker_id: str,
        *,
        pass_time: float = 0.1,
        dispatch_ids: tuple[int, ...] | None = None,
        queued: int = 0,
        running: int = 0,
        kv_tokens: int | None = None,
        free: int | None = None,
        prefilled: tuple[HeldRequest, ...] = (),
        finished: tuple[int, ...] = (),
        admitted: tuple[Admission, ...] = (),
        begun: tuple[int, ...] = (),
        yielding: tuple[int, int] = (0, 0),
        pass_id: int = 1,
        after: float = 0.0,
    ) -> list[SchedulerAction]:
        """A report of unit 0; the other units are idle. By default the last dispatch ended.

        ``yielding``: queued tokens, and blocks in use, that yield to a reader's first token.
        A worker that was given requests and has not ended them holds some KV.
        """
        info = self.infos[worker_id]
        sent = self.dispatches(worker_id)
        if dispatch_ids is None:
            dispatch_ids = (sent[-1].dispatch_id,) if sent else ()
        loads = list(idle_loads(info))
        num_free = info.num_blocks if free is None else free
        self.finished |= set(finished)
        if kv_tokens is None:
            kv_tokens = int(any(i not in self.finished for i in self.dispatched(worker_id)))
        load = UnitLoad(0, queued, running, kv_tokens, num_free)
        loads[0] = replace(load, yielding_tokens=yielding[0], num_yielding_blocks=yielding[1])
        ends = tuple(
            FinishedRequest(key(stream_id), self.unit_of(stream_id), 10, 5, FinishReason.STOP)
            for stream_id in finished
        )
        report = EndForward(
            *(pass_id, pass_time, dispatch_ids, tuple(loads), prefilled, ends),
            admitted=admitted,
            begun=tuple(map(key, begun)),
        )
        return self.post(WorkerReported(worker_id, report), after=after)

    def serve(self, worker_id: str, **fields: object) -> list[SchedulerAction]:
        """The worker acknowledges its last dispatch and ends the pass 0.1 s later."""
        self.accept(worker_id)
        return self.end_forward(worker_id, **{"after": 0.1, **fields})  # type: ignore[arg-type]  # fields by name

    def prefill(
        self, worker_id: str, stream_id: int, num_tokens: int = 11, *, remaining: float = 0.0
    ) -> list[SchedulerAction]:
        """The worker has computed this prompt."""
        held = HeldRequest(
            key(stream_id), f"r{stream_id}", 0, num_tokens, True, predicted_remaining=remaining
        )
        return self.serve(worker_id, prefilled=(held,))

    def handed_off(
        self, worker_id: str, *, ok: bool = True, retriable: bool = True
    ) -> list[SchedulerAction]:
        """The worker's last handoff ended."""
        order = self.orders(worker_id, Handoff)[-1]
        target, token = (order.target_worker_id, order.target_unit), order.fencing_token
        result = HandoffResult(order.key, *target, ok, retriable, "broken", token)
        return self.post(WorkerReported(worker_id, result))

    def kill(self, worker_id: str) -> list[SchedulerAction]:
        return self.post(WorkerGone(worker_id, f"worker {worker_id} is gone"))

    # --- what came of it --------------------------------------------------------------

    def orders(self, worker_id: str, kind: type[M]) -> list[M]:
        return [
            a.message
            for a in self.log
            if isinstance(a, SendToWorker)
            and a.worker_id == worker_id
            and isinstance(a.message, kind)
        ]

    def dispatches(self, worker_id: str) -> list[Dispatch]:
        return self.orders(worker_id, Dispatch)

    def dispatched(self, worker_id: str) -> list[int]:
        """Stream ids, in the order in which they went to the worker."""
        return [
            request.stream_id
            for dispatch in self.dispatches(worker_id)
            for batch in dispatch.batches
            for request in batch.requests
        ]

    def unit_of(self, stream_id: int) -> int:
        """The DP unit that a request was last sent to; 0 if it was not."""
        units = [
            batch.unit
            for action in self.log
            if isinstance(action, SendToWorker) and isinstance(action.message, Dispatch)
            for batch in action.message.batches
            if stream_id in [request.stream_id for request in batch.requests]
        ]
        return units[-1] if units else 0

    def cancelled(self, worker_id: str) -> list[int]:
        return [order.key.stream_id for order in self.orders(worker_id, CancelStream)]

    def answers(self, kind: type[M], gateway_id: str = "g") -> list[M]:
        return [
            a.message
            for a in self.log
            if isinstance(a, SendToGateway)
            and a.gateway_id == gateway_id
            and isinstance(a.message, kind)
        ]

    def placed(self) -> list[tuple[int, str]]:
        """Where its requests came to rest: what was said of moves under way is left out."""
        told = self.answers(Placed)
        return [(p.key.stream_id, p.worker_id) for p in told if not p.target_worker_id]

    def rejected(self) -> list[Rejected]:
        return self.answers(Rejected)

    def lost(self) -> list[int]:
        return [k.stream_id for lost in self.answers(Lost) for k in lost.keys]

    def notes(self) -> list[str]:
        return [a.event for a in self.log if isinstance(a, Note)]

    def decisions(self) -> list[Decision]:
        return [a for a in self.log if isinstance(a, Decision)]


def short_pass(settings: SchedulerSettings | None = None, **params: float) -> SchedulerSettings:
    """Settings with T̄ = 0.1 s before the first report."""
    base = settings or SchedulerSettings()
    return replace(base, dispatch_params={"default_pass_time": 0.1, **params})


def decoding_cluster(
    *decoders: str,
    running: int = 0,
    standings: Mapping[int, Standing] = MappingProxyType({}),
    blocks: int = 1000,
    **fields: Any,
) -> SchedulerHarness:
    """A prefiller p and these decoders; requests from 1 on run on the first of them."""
    scheduler = SchedulerHarness(replace(short_pass(), **fields))
    scheduler.connect(make_info("p"))
    for place, worker_id in enumerate(decoders):
        scheduler.connect(make_info(worker_id, Role.DECODE, blocks=blocks))
        for number in range(1, running + 1) if not place else ():
            scheduler.submit(number, standing=standings.get(number, NO_STANDING))
            scheduler.prefill("p", number)
            scheduler.handed_off("p")
    return scheduler
