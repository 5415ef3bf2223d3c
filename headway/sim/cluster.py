"""A cluster of real cores on virtual time: only clock, wire and forward pass are stand-ins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, replace
from functools import partial
from itertools import cycle
from math import inf
from types import MappingProxyType

from headway.cluster import Role
from headway.core.gateway.core import GatewayCore
from headway.core.gateway.events import (
    CancelTokens,
    Deliver,
    Fail,
    GatewayAction,
    GatewayEvent,
    SchedulerConnected,
    SchedulerDisconnected,
    WorkerDetached,
)
from headway.core.gateway.settings import GatewaySettings
from headway.core.scheduler.admission import wanted_reports
from headway.core.scheduler.core import SchedulerCore
from headway.core.scheduler.events import (
    Decision,
    GatewayConnected,
    GatewayDisconnected,
    SchedulerAction,
    SendToGateway,
    SendToWorker,
    WorkerGone,
    WorkerReported,
)
from headway.core.worker.events import GatewayGone, LeaderConnected, SendTokens
from headway.core.worker.unit import PrefixCounts
from headway.errors import invalid
from headway.life.record import LifeRecord
from headway.messages import CancelStream, FromWorker, Placed, ToGateway
from headway.policies import registry
from headway.policies.pacing import Pacing
from headway.request import Request, StreamKey
from headway.sim.billing import PaidTime
from headway.sim.clients import Clients, SimRequest
from headway.sim.host import Host
from headway.sim.kernel import Kernel
from headway.sim.leader import SimLeader
from headway.sim.network import Network
from headway.sim.node import Node
from headway.sim.pass_log import HeardPasses
from headway.sim.planning import HEADWAY
from headway.sim.records import Record
from headway.sim.sessions import SessionClients, SessionLoad, SessionTask
from headway.sim.spec import SIMULATED_WORKER, ClusterSpec
from headway.sim.worker import InstanceSpec, Policies, SimWorker

__all__ = ["SIMULATED_WORKER", "ClusterSpec", "SimCluster", "SimRequest"]

LEASE = 2.0
"""Seconds from a leader's death to the next one's term, as live."""


class SimCluster:
    """Gateways, scheduler and workers; ``ended`` is told of every request that is over."""

    def __init__(self, kernel: Kernel, spec: ClusterSpec, ended: Callable[[Record], None]) -> None:
        self.kernel = kernel
        self.spec = spec
        self._hops = spec.network.costs
        self._host = Host(kernel, self._hops, spec.pace, self._num_busy)
        self.network = Network(kernel, spec.network, self._host)
        self.decisions: list[Decision] = []
        self._ended = ended
        self._clients = Clients(kernel, _pacing(spec.gateway), self._request_ended)
        self._workers: dict[str, SimWorker] = {}
        self._paid: dict[str, PaidTime] = {}
        self._num_passes_over = self._num_preemptions_over = 0  # of instances that are gone
        self._prefix_counts_over: list[PrefixCounts] = []
        self._is_fed = False
        self._sessions = SessionClients(SessionLoad(()), kernel, self._submit)
        self.on_arrival: Callable[[SimRequest], None] = lambda request: None
        self._gateway_cores: list[GatewayCore] = []
        self._heard: HeardPasses | None = None  # the passes whose tokens are being taken
        self._gateways = {gateway_id: self._gateway(gateway_id) for gateway_id in spec.gateway_ids}
        self._turns = cycle(self._gateways)
        self._asked: dict[str, str] = {}  # gateways by request, while it is open
        self._leader = SimLeader(kernel, spec.scheduler, self._perform_scheduler)
        for kind, count in spec.instances:
            for _ in range(count):
                self.start_worker(kind, running=True)
        self._elect()

    # --- the scheduler's leader -------------------------------------------------------

    @property
    def scheduler_core(self) -> SchedulerCore:
        """The core of the scheduler that leads, or led last."""
        return self._leader.core

    def lose_leader(self) -> None:
        """End the leading scheduler as if its machine died; a standby leads after its lease.

        While nobody leads there is nothing to lose.
        """
        if not self._leader.leads:
            return
        self._leader.die()
        for gateway in self._gateways.values():
            gateway.post(SchedulerDisconnected())
        self.kernel.after(LEASE, self._elect)

    def _elect(self) -> None:
        self._leader.elect(tuple(self._workers))
        for gateway_id, gateway in self._gateways.items():
            self._leader.post(GatewayConnected(gateway_id))
            gateway.post(SchedulerConnected())
        for worker in self.workers:
            worker.post(self._hello())

    def _hello(self) -> LeaderConnected:
        wants = wanted_reports(self.spec.scheduler, has_choice=False)
        return LeaderConnected(wants, self._leader.term)

    # --- instances --------------------------------------------------------------------

    @property
    def gateway_cores(self) -> Sequence[GatewayCore]:
        """The cores of all gateways."""
        return self._gateway_cores

    @property
    def keeps_decisions(self) -> bool:
        """True if leaders write their decisions down, for ``decisions``."""
        return self._leader.keeps_decisions

    @keeps_decisions.setter
    def keeps_decisions(self, keeps: bool) -> None:
        self._leader.keep_decisions(keeps)

    @property
    def workers(self) -> Sequence[SimWorker]:
        """Instances that live, oldest first."""
        return tuple(self._workers.values())

    def start_worker(self, kind: InstanceSpec, *, running: bool = False) -> str:
        """Add an instance; it joins when it has started up, if need be. Returns its id."""
        worker_id = f"{kind.role.value}-{len(self._paid) + 1}"
        self._paid[worker_id] = PaidTime(kind.profile.num_gpus, self.kernel.now)
        delay = 0.0 if running else kind.profile.start_up
        self.kernel.after(delay, partial(self._join, worker_id, kind))
        return worker_id

    def _join(self, worker_id: str, kind: InstanceSpec) -> None:
        spec = self.spec
        estimation = spec.estimation if kind.planner == HEADWAY else spec.counted
        policies = Policies(spec.batching.make, estimation.make if estimation else _none)
        pace = self._host.pace(len(self._workers))
        settings = spec.worker if pace is None else replace(spec.worker, max_steps=1)
        worker = SimWorker(
            worker_id,
            kind,
            policies,
            settings,
            self._clients.lengths,
            self,
            pace,
            spec.prediction_seconds,
        )
        self._workers[worker_id] = worker
        worker.post(self._hello())

    def change_role(self, worker_id: str, role: Role) -> None:
        """Have a running instance serve another role from now on; its requests go on."""
        self._workers[worker_id].change_role(role)

    def _num_busy(self) -> int:
        return sum(worker.device.is_running for worker in self._workers.values())

    def kill(self, worker_id: str) -> None:
        """End an instance as if its machine died; its streams break at once."""
        worker = self._workers.get(worker_id)
        if worker is not None:
            worker.tell_tokens()
            del self._workers[worker_id]
            self._paid[worker_id].ended_at = self.kernel.now
            self._num_passes_over += worker.device.num_passes
            self._num_preemptions_over += worker.num_preemptions
            self._prefix_counts_over.append(worker.core.prefix_counts)
            worker.stop()
            self.network.cut(worker_id)
            self._leader.post(WorkerGone(worker_id, "it died"))
            for gateway in self._gateways.values():
                gateway.post(WorkerDetached(worker_id))

    def worker(self, worker_id: str) -> SimWorker | None:
        """An instance by id, if it lives."""
        return self._workers.get(worker_id)

    @property
    def num_passes(self) -> int:
        """Passes of all instances, those that died included."""
        return self._num_passes_over + sum(w.device.num_passes for w in self.workers)

    @property
    def num_preemptions(self) -> int:
        """Preemptions on all instances, those that died included."""
        return self._num_preemptions_over + sum(w.num_preemptions for w in self.workers)

    @property
    def prefix_counts(self) -> PrefixCounts:
        """Prompt tokens and hits of all instances, those that died included."""
        counts = [*self._prefix_counts_over, *(w.core.prefix_counts for w in self.workers)]
        return PrefixCounts(*(sum(each) for each in zip(*map(astuple, counts), strict=True)))

    def gpu_seconds(self, until: float) -> float:
        """Return the GPU-seconds up to an instant: start-ups and instances that died included."""
        return sum(paid.gpu_seconds(until) for paid in self._paid.values())

    # --- clients ----------------------------------------------------------------------

    @property
    def num_burst_tokens(self) -> int | None:
        """Prompt tokens that the gateway has labelled as burst; None if it labels nothing."""
        counts = [core.num_burst_tokens for core in self._gateway_cores]
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def num_produced(self) -> int:
        """Output tokens that have come to the gateways so far."""
        self._tell_tokens()
        return self._clients.num_produced

    def expected_tokens(self, request: SimRequest) -> float:
        """Return the output tokens that a request's gateway expects; 0 if unknown."""
        return self._clients.expected_tokens(request)

    @property
    def is_busy(self) -> bool:
        """True if a request or a session is open or still to come."""
        return self._is_fed or self._clients.are_waiting or self._sessions.are_waiting

    @property
    def tasks(self) -> Sequence[SessionTask]:
        """The sessions that have ended and started by themselves, in the order of their ends."""
        return self._sessions.tasks

    @property
    def ended_at(self) -> float:
        """When the last request so far ended."""
        return self._clients.ended_at

    def submit(self, request: SimRequest) -> None:
        """Submit a request at its arrival."""
        self.kernel.at(request.arrival_at, partial(self._submit, request))

    def serve(self, load: Iterable[SimRequest] | SessionLoad) -> None:
        """Clients ask: requests at their arrivals, which are in order, or sessions turn by turn."""
        if isinstance(load, SessionLoad):
            self._sessions = SessionClients(load, self.kernel, self._submit)
            self._sessions.begin()
        else:
            self.feed(iter(load))

    def feed(self, requests: Iterator[SimRequest]) -> None:
        """Clients ask, each at its arrival; those are in order. One is looked at at a time."""
        request = next(requests, None)
        self._is_fed = request is not None
        if request is not None:
            self.kernel.at(request.arrival_at, partial(self._submit_and_feed, request, requests))

    def _submit_and_feed(self, request: SimRequest, requests: Iterator[SimRequest]) -> None:
        self._submit(request)
        self.feed(requests)

    def _submit(self, request: SimRequest) -> None:
        self.on_arrival(request)
        self._host.note_request()
        submit = self._clients.ask(request)
        gateway_id = self._asked[request.request_id] = next(self._turns)
        if self._hops.gateway:
            ask = partial(self._tell_gateway, gateway_id, submit)
            self._host.after("client", self._hops.gateway, ask)
        else:
            self._tell_gateway(gateway_id, submit)

    # --- the gateways -----------------------------------------------------------------

    def lose_gateway(self, gateway_id: str) -> None:
        """End a gateway as if its machine died: its requests are lost, and others serve new ones.

        HeadwayError unless it lives and another one does.
        """
        if gateway_id not in self._gateways or len(self._gateways) < 2:
            raise invalid("failures.instance", gateway_id, "a gateway that lives beside another")
        self._tell_tokens()
        self._gateways.pop(gateway_id).stop()
        self._turns = cycle(self._gateways)
        self._leader.post(GatewayDisconnected(gateway_id))
        for worker in self.workers:
            worker.post(GatewayGone(gateway_id))
        for request_id in [r for r, asked in self._asked.items() if asked == gateway_id]:
            self._clients.close(request_id, error=f"its gateway {gateway_id} died")

    def _tell_gateway(self, gateway_id: str, event: GatewayEvent) -> None:
        gateway = self._gateways.get(gateway_id)
        if gateway is not None:
            gateway.post(event)

    def _gateway(self, gateway_id: str) -> Node[GatewayEvent, GatewayAction]:
        """Return a new gateway; the clients know of its pacing (``shown``)."""
        unpaced = replace(self.spec.gateway, pacing="off", pacing_params=MappingProxyType({}))
        core = GatewayCore(gateway_id, gateway_id, unpaced)
        self._gateway_cores.append(core)
        perform = partial(self._perform_gateway, gateway_id)
        return Node(self.kernel, core, perform, self._tell_tokens)  # what fails goes on behind them

    def _perform_gateway(self, gateway_id: str, action: GatewayAction) -> None:
        latency = self._hops.submit
        match action:
            case Request():
                self._clients.attempt(action)
                self._host.after(gateway_id, latency, self._leader.arrival(action))
            case CancelStream():
                self._host.after(gateway_id, latency, self._leader.arrival(action))
            case CancelTokens(worker_id, stream_ids):
                for stream_id in stream_ids:
                    cancel = CancelStream(StreamKey(gateway_id, stream_id))
                    self._tell_worker(latency, worker_id, cancel)
            case Deliver():
                self._clients.deliver(action, self._heard)
            case Fail(request_id, error):
                self._clients.close(request_id, error=error.message)

    def _request_ended(self, record: Record) -> None:
        """Complete its life with what its client saw."""
        del self._asked[record.request_id]
        for core in self._gateway_cores:
            core.lives.finish(
                record.request_id,
                record.error or "stop",
                self.kernel.now,
                first_answer_at=record.first_answer_at,
                num_reasoning=min(record.num_reasoning_tokens, record.num_tokens),
                num_output=record.num_tokens,
            )
        self._ended(record)
        self._sessions.ended(record)

    def life(self, request_id: str) -> LifeRecord | None:
        """Return a request's life, where the spec's gateways and workers write lives down."""
        lives = (core.lives.find(request_id, self.kernel.now) for core in self._gateway_cores)
        return next((life for life in lives if life is not None), None)

    @property
    def lives(self) -> Iterator[LifeRecord]:
        """The lives that gateways know, of one gateway after the other."""
        for core in self._gateway_cores:
            yield from core.lives.since(-inf, self.kernel.now)

    def to_gateway(self, send: SendTokens, heard: HeardPasses) -> None:
        """Hand on tokens that an instance has drawn."""
        delay = self._hops.token
        if delay:
            self.kernel.after(delay, partial(self._hear_tokens, send, heard))
        else:
            self._hear_tokens(send, heard)

    def _hear_tokens(self, send: SendTokens, heard: HeardPasses) -> None:
        self._heard = heard
        self._tell_gateway(send.gateway_id, send.batch)
        self._heard = None

    # --- the scheduler ----------------------------------------------------------------

    def _perform_scheduler(self, action: SchedulerAction) -> None:
        hops = self._hops
        match action:
            case SendToWorker(worker_id, message):
                self._tell_worker(hops.dispatch, worker_id, message)
            case SendToGateway(gateway_id, message):
                tell = partial(self._post_gateway, gateway_id, message)
                self._host.after(f"to {gateway_id}", hops.submit, tell)
            case Decision():
                self.decisions.append(action)

    def _post_gateway(self, gateway_id: str, message: ToGateway) -> None:
        """Hand on a message; one of a loss finds all tokens drawn so far."""
        if not isinstance(message, Placed):
            self._tell_tokens()
        self._tell_gateway(gateway_id, message)

    def _tell_tokens(self) -> None:
        """Let clients have all tokens drawn so far."""
        for worker in self._workers.values():
            worker.tell_tokens()

    def _tell_worker(self, delay: float, worker_id: str, message: object) -> None:
        post = partial(self._post_worker, worker_id, message)
        self._host.after(f"to {worker_id}", delay, post)

    def _post_worker(self, worker_id: str, message: object) -> None:
        worker = self._workers.get(worker_id)
        if worker is not None:
            worker.post(message)  # type: ignore[arg-type]  # orders are events of its core

    def to_scheduler(self, worker_id: str, message: FromWorker) -> None:
        """Hand on a worker's message after its latency."""
        event = WorkerReported(worker_id, message)
        term = self._leader.term
        hear = partial(self._hear, worker_id, event, term)
        self._host.after(worker_id, self._hops.report, hear)

    def _hear(self, worker_id: str, event: WorkerReported, term: int) -> None:
        if worker_id in self._workers and term == self._leader.term:
            self._leader.post(event)


def _pacing(settings: GatewaySettings) -> Pacing | None:
    """Return the policy that paces readers, None for one that never holds a token."""
    pacing: Pacing = registry.make("pacing", settings.pacing, **settings.pacing_params)
    return pacing if pacing.paces else None


def _none() -> None:
    """Estimate nothing."""
