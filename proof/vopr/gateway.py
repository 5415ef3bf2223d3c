"""A gateway's process: its core, its clients, the stream to the leader, the workers' streams in."""

from __future__ import annotations

import struct
from dataclasses import replace
from functools import partial

from headway.core.autoscaler.events import RateReport
from headway.core.gateway.core import GatewayCore
from headway.core.gateway.events import (
    CancelTokens,
    Deliver,
    Fail,
    GatewayAction,
    GatewayEvent,
    Release,
    SchedulerConnected,
    SchedulerDisconnected,
    Submit,
    WorkerBack,
    WorkerDetached,
)
from headway.core.gateway.settings import GatewaySettings
from headway.errors import Code
from headway.messages import GatewayHello, Lost
from headway.policies.scaling import RateMeter
from headway.request import Request
from proof.checker import Ended, Failed, Left, Read
from proof.vopr.engine import END_OF_REASONING
from proof.vopr.network import End, Packed, packed, parsed
from proof.vopr.process import SimulatedDriver, SimulatedProcess
from proof.vopr.store import Lease
from proof.vopr.world import MODEL, World
from services.runtime import wire

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 0.25
_LEADER_CHECK_INTERVAL = 0.1


class GatewayProcess(SimulatedProcess):
    """One life of a gateway, as ``services.gateway`` shells its core."""

    def __init__(self, world: World, name: str, skew: float) -> None:
        super().__init__(world.kernel, name, skew)
        self._world = world
        policies = world.policies
        settings = GatewaySettings(
            max_model_len=world.shape.num_blocks * 4,
            request_timeout=world.times.request_timeout,
            burst=policies.burst.name,
            burst_params=policies.burst.params,
            pacing=policies.pacing.name,
            pacing_params=policies.pacing.params,
            end_of_reasoning=(END_OF_REASONING,),
        )
        draw = partial(world.rng.getrandbits, 64)
        self.core = GatewayCore(name, name, settings, draw_stream_id=draw)
        self._driver: SimulatedDriver[GatewayEvent, GatewayAction] = SimulatedDriver(
            self, self.core, self._perform
        )
        self.clients: dict[str, bool] = {}
        """Requests whose clients still read."""
        self._began_at: dict[str, float] = {}
        self._scheduler: End | None = None
        self._leader: Lease | None = None
        self._pause = _SHORTEST_PAUSE
        self._attached: dict[str, End] = {}
        self._processes: dict[str, SimulatedProcess] = {}
        self._meter = RateMeter(now=self.now())
        world.network.listen(self, "Attach", self._attach)
        self._look_for_leader()
        self.after(1.0, self._report_rates)

    # --- clients ----------------------------------------------------------------------

    def submit(self, request: Request, *, is_read: bool) -> None:
        """Take a client's request."""
        self.clients[request.request_id] = True
        self._began_at[request.request_id] = self.kernel.now
        self._meter.arrived(len(request.prompt_token_ids), request.predicted_output_tokens)
        self._driver.post(Submit(replace(request, arrival_at=self.now()), is_read))

    def hang_up(self, request_id: str) -> None:
        """A client leaves."""
        if self.clients.pop(request_id, False):
            self._world.hit("a client leaves")
            self._world.record(Left(request_id, self.kernel.now))
            self._driver.post(Release(request_id))

    def kill(self) -> None:
        """End at once: its clients lose their connections."""
        super().kill()
        for request_id in self.clients:
            self._world.record(Left(request_id, self.kernel.now))
        self.clients.clear()

    def _perform(self, action: GatewayAction) -> None:
        if isinstance(action, Deliver):
            self._deliver(action)
        elif isinstance(action, Fail):
            if self.clients.pop(action.request_id, False):
                self._fail(action)
        elif isinstance(action, CancelTokens):
            self._cancel(action)
        elif self._scheduler is not None:
            if isinstance(action, Request) and action.attempt:
                self._world.hit("a request is resubmitted")
            self._scheduler.send(
                packed(wire.FROM_GATEWAY.pack(action, now=self.now())), repeatable=True
            )

    def _fail(self, action: Fail) -> None:
        """Tell the client; two faults excuse that its request is given up."""
        error, now = action.error, self.kernel.now
        self._world.hit(f"a request fails: {error.code.name}")
        is_excused = self._world.excuses(error.message, self._began_at[action.request_id])
        due_at = self._began_at[action.request_id] + self._world.times.request_timeout
        self._world.require(
            now >= due_at or error.code is not Code.DEADLINE_EXCEEDED,
            "no deadline passes early",
            f"{action.request_id}: {error.message}",
        )
        failed = Failed(action.request_id, now, error.code.name, error.message, is_excused)
        self._world.record(failed)

    def _deliver(self, action: Deliver) -> None:
        if action.pauses:
            self._world.hit("tokens come from another worker")
        self._meter.produced(len(action.deliveries))
        for delivery in action.deliveries:
            if not self.clients.get(delivery.request_id):
                continue
            tokens = (*delivery.before, delivery.token_id)
            read = tuple(token for token in tokens if token is not None)
            if read:
                self._world.record(Read(delivery.request_id, self.kernel.now, read))
            if delivery.finish_reason is not None:
                del self.clients[delivery.request_id]
                reason = delivery.finish_reason.value
                self._world.record(Ended(delivery.request_id, self.kernel.now, reason))

    def _cancel(self, action: CancelTokens) -> None:
        stream = self._attached.get(action.worker_id)
        if stream is not None:
            ids = struct.pack(f"<{len(action.stream_ids)}Q", *action.stream_ids)
            stream.send((bytes, ids), repeatable=True)

    # --- the leader -------------------------------------------------------------------

    def _look_for_leader(self) -> None:
        def found(leader: Lease | None) -> None:
            if leader is None:
                self._again()
                return
            self._leader = leader
            dial = self._world.network.dial
            dial(self, leader.address, "Connect", self._opened, lambda _: self._again())

        self._world.store.ask(self, self._world.store.leader, found, self._again)

    def _again(self) -> None:
        self.after(self._pause, self._look_for_leader)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _opened(self, stream: End) -> None:
        self._scheduler = stream
        self._pause = _SHORTEST_PAUSE
        stream.on_message = self._told
        stream.on_break = lambda _: self._lost_scheduler()
        hello = GatewayHello(self.name, self.name)
        stream.send(packed(wire.FROM_GATEWAY.pack(hello, now=self.now())))
        self._driver.post(SchedulerConnected())
        self.after(_LEADER_CHECK_INTERVAL, lambda: self._check_leader(stream))

    def _check_leader(self, stream: End) -> None:
        """Leave a scheduler that the store does not name any more."""
        if self._scheduler is not stream:
            return

        def again() -> None:
            self.after(_LEADER_CHECK_INTERVAL, lambda: self._check_leader(stream))

        def found(leader: Lease | None) -> None:
            if self._scheduler is not stream:
                return
            if leader is None or self._leader is None or leader.token == self._leader.token:
                again()
                return
            stream.close("the leader has changed")
            self._lost_scheduler()

        self._world.store.ask(self, self._world.store.leader, found, again)

    def _lost_scheduler(self) -> None:
        self._scheduler = None
        self._driver.post(SchedulerDisconnected())
        self._again()

    def _told(self, message: Packed) -> None:
        for told in wire.TO_GATEWAY.unpack_all(parsed(message)):
            if isinstance(told, Lost):
                self._world.hit("a request is lost with its worker")
            self._driver.post(told)

    # --- the workers ------------------------------------------------------------------

    def _attach(self, stream: End) -> None:
        stream.on_message = lambda message: self._first_batch(stream, message)

    def _first_batch(self, stream: End, message: Packed) -> None:
        batch = wire.unpack_token_batch(parsed(message))
        worker_id = batch.worker_id
        older = self._attached.pop(worker_id, None)
        if older is not None:
            self._world.hit("a worker's newer stream replaces the older")
            older.close("a newer stream has been opened")
            self._driver.post(WorkerDetached(worker_id))
        self._attached[worker_id] = stream
        if self._processes.get(worker_id) is stream.peer.process:
            self._world.hit("a worker is back")
            self._driver.post(WorkerBack(worker_id))
        self._processes[worker_id] = stream.peer.process
        stream.on_message = self._tokens
        stream.on_break = lambda _: self._detach(worker_id, stream)
        self._driver.post(batch)

    def _tokens(self, message: Packed) -> None:
        self._driver.post(wire.unpack_token_batch(parsed(message)))

    def _detach(self, worker_id: str, stream: End) -> None:
        if self._attached.get(worker_id) is stream:
            del self._attached[worker_id]
            self._driver.post(WorkerDetached(worker_id))

    # --- the autoscaler ---------------------------------------------------------------

    def _report_rates(self) -> None:
        self.after(1.0, self._report_rates)
        now = self.now()
        rates, window = self._meter.read(now=now, num_burst=self.core.num_burst_tokens)
        report = RateReport(
            self.name,
            rates.requests_per_s,
            rates.input_tokens_per_s,
            rates.output_tokens_per_s,
            now,
            window,
            rates.bucket_tokens_per_s,
            MODEL,
            rates.burst_tokens_per_s,
        )
        message = packed(wire.RATE_REPORT.pack(report))
        self._world.network.call(self, "a0", "ReportRates", message)
