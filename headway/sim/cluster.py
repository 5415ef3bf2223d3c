"""A cluster of real cores on virtual time: only clock, wire and forward pass are stand-ins."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

from headway.core.gateway.core import GatewayCore
from headway.core.gateway.events import (
    CancelTokens,
    Deliver,
    Fail,
    GatewayAction,
    GatewayEvent,
    SchedulerConnected,
    Submit,
    WorkerDetached,
)
from headway.core.gateway.settings import GatewaySettings
from headway.core.scheduler.admission import wanted_reports
from headway.core.scheduler.core import SchedulerCore
from headway.core.scheduler.events import (
    Decision,
    Elected,
    GatewayConnected,
    SchedulerAction,
    SchedulerEvent,
    SendToGateway,
    SendToWorker,
    WorkerGone,
    WorkerReported,
)
from headway.core.scheduler.settings import SchedulerSettings
from headway.core.settings import Policy
from headway.core.worker.events import LeaderConnected, SendTokens
from headway.core.worker.settings import WorkerSettings
from headway.messages import CancelStream, FromWorker
from headway.request import Request, SamplingParams, StreamKey
from headway.sim.device import REASONING_END, Steps
from headway.sim.kernel import Kernel
from headway.sim.network import Network, NetworkParams
from headway.sim.node import Node
from headway.sim.pace import MeasuredPace
from headway.sim.records import Record, Segment
from headway.sim.worker import MODEL, InstanceSpec, Policies, SimWorker

GATEWAY = "gateway"
MOST_STEPS = 1 << 20
SIMULATED_WORKER = WorkerSettings(max_steps=MOST_STEPS, end_of_reasoning=(REASONING_END,))
SIMULATED_GATEWAY = GatewaySettings(max_model_len=1 << 40, max_waiting=1 << 30, request_timeout=1e9)
"""No limits: overload shows as latency."""
SARATHI = Policy("batching", "sarathi", MappingProxyType({}))
_APART = 0.6180339887  # of a pace's curve, between two instances: never the same place
_LONGEST_STREAM = 60.0  # seconds that a copy may outlive its request


@dataclass(frozen=True, slots=True)
class SimRequest:
    """A client's request and the model's answer to it; seconds, tokens.

    ``num_reasoning_tokens`` counts up to and with the end of reasoning, 0 for none.
    ``prefix_hashes``: of the prompt's blocks of 512 tokens from its beginning; equal ones hold
    the same tokens. ``is_read``: whether its client reads the answer as it comes.
    """

    request_id: str
    arrival_at: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_reasoning_tokens: int = 0
    prefix_hashes: tuple[int, ...] = ()
    is_read: bool = True

    @property
    def num_answer_tokens(self) -> int:
        """Tokens that its reader is shown."""
        return self.num_output_tokens - self.num_reasoning_tokens


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A cluster: its instances, its policies and the settings of its cores."""

    instances: Sequence[tuple[InstanceSpec, int]]
    """Kinds of instances, and how many of each."""
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    worker: WorkerSettings = SIMULATED_WORKER
    gateway: GatewaySettings = SIMULATED_GATEWAY
    batching: Policy = SARATHI
    estimation: Policy | None = None
    network: NetworkParams = field(default_factory=NetworkParams)
    pace: MeasuredPace | None = None
    """The pace of machines that are not always as fast as their profiles say.

    Each instance begins somewhere else on it, and every pass has a single step.
    """


class SimCluster:
    """Gateway, scheduler and workers; ``ended`` is told of every request that is over."""

    def __init__(self, kernel: Kernel, spec: ClusterSpec, ended: Callable[[Record], None]) -> None:
        self.kernel = kernel
        self.spec = spec
        self.network = Network(kernel, spec.network)
        self.decisions: list[Decision] = []
        self.keeps_decisions = False
        self.records: dict[str, Record] = {}
        self._ended = ended
        self._lengths: dict[StreamKey, SimRequest] = {}
        self._streams: deque[tuple[float, StreamKey]] = deque()
        self._requests: dict[str, SimRequest] = {}
        self._workers: dict[str, SimWorker] = {}
        self._num_started = 0
        self._is_fed = False
        self.ended_at = 0.0
        self.on_arrival: Callable[[SimRequest], None] = lambda request: None
        self._steps = Steps(0.0, 0.0, 0.0)
        self._num_steps = 1
        self.gateway: Node[GatewayEvent, GatewayAction] = Node(
            kernel, GatewayCore(GATEWAY, GATEWAY, spec.gateway), self._perform_gateway
        )
        self.scheduler_core = SchedulerCore(spec.scheduler)
        self.scheduler: Node[SchedulerEvent, SchedulerAction] = Node(
            kernel, self.scheduler_core, self._perform_scheduler
        )
        for kind, count in spec.instances:
            for _ in range(count):
                self.start_worker(kind, running=True)
        self.scheduler.post(Elected(1, tuple(self._workers)))
        self.scheduler.post(GatewayConnected(GATEWAY))
        self.gateway.post(SchedulerConnected())

    # --- instances --------------------------------------------------------------------

    @property
    def workers(self) -> Sequence[SimWorker]:
        """Instances that live, oldest first."""
        return tuple(self._workers.values())

    def start_worker(self, kind: InstanceSpec, *, running: bool = False) -> str:
        """Add an instance; it joins when it has started up, if need be. Returns its id."""
        self._num_started += 1
        worker_id = f"{kind.role.value}-{self._num_started}"
        delay = 0.0 if running else kind.profile.start_up
        self.kernel.after(delay, partial(self._join, worker_id, kind))
        return worker_id

    def _join(self, worker_id: str, kind: InstanceSpec) -> None:
        spec = self.spec
        policies = Policies(spec.batching.make, spec.estimation.make if spec.estimation else _none)
        settings = spec.worker if spec.pace is None else replace(spec.worker, max_steps=1)
        pace = spec.pace.replay(_APART * len(self._workers)) if spec.pace else None
        worker = SimWorker(worker_id, kind, policies, settings, self._lengths, self, pace)
        self._workers[worker_id] = worker
        worker.post(LeaderConnected(wanted_reports(self.spec.scheduler)))

    def kill(self, worker_id: str) -> None:
        """End an instance as if its machine died; its streams break at once."""
        worker = self._workers.pop(worker_id, None)
        if worker is not None:
            worker.stop()
            self.scheduler.post(WorkerGone(worker_id, "it died"))
            self.gateway.post(WorkerDetached(worker_id))

    def worker(self, worker_id: str) -> SimWorker | None:
        """An instance by id, if it lives."""
        return self._workers.get(worker_id)

    # --- clients ----------------------------------------------------------------------

    @property
    def num_burst_tokens(self) -> int | None:
        """Prompt tokens that the gateway has labelled as burst; None if it labels nothing."""
        core = self.gateway.core
        assert isinstance(core, GatewayCore), "the gateway's node runs its core"
        return core.num_burst_tokens

    @property
    def is_busy(self) -> bool:
        """True if a request is open or still to come from ``feed``."""
        return self._is_fed or bool(self._requests)

    def submit(self, request: SimRequest) -> None:
        """Submit a request at its arrival."""
        self.kernel.at(request.arrival_at, partial(self._submit, request))

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
        self._requests[request.request_id] = request
        self.records[request.request_id] = Record(
            request.request_id,
            request.arrival_at,
            request.num_prompt_tokens,
            request.num_reasoning_tokens,
            request.num_output_tokens,
            is_read=request.is_read,
        )
        sampling = SamplingParams(max_tokens=request.num_output_tokens)
        prompt = range(request.num_prompt_tokens)  # any tokens will do
        reasons = request.num_reasoning_tokens > 0
        asked = Request(
            request.request_id, MODEL, prompt, sampling, request.arrival_at, reasons=reasons
        )
        self.gateway.post(Submit(asked, request.is_read))

    def _close(self, request_id: str, *, error: str = "") -> None:
        record = self.records.pop(request_id)
        self.ended_at = self.kernel.now
        record.finished, record.error = not error, error
        del self._requests[request_id]
        self._forget_old_streams()
        self._ended(record)

    def _forget_old_streams(self) -> None:
        """A worker may run a cancelled copy for a while; nothing runs for so long."""
        streams = self._streams
        while streams and streams[0][0] < self.kernel.now - _LONGEST_STREAM:
            _, key = streams.popleft()
            if self._lengths[key].request_id not in self._requests:
                del self._lengths[key]
            else:
                streams.append((self.kernel.now, key))

    # --- the gateway ------------------------------------------------------------------

    def _perform_gateway(self, action: GatewayAction) -> None:
        latency = self.spec.network.latency
        match action:
            case Request():
                if action.key not in self._lengths:
                    self._streams.append((self.kernel.now, action.key))
                self._lengths[action.key] = self._requests[action.request_id]
                self.kernel.after(latency, partial(self.scheduler.post, action))
            case CancelStream():
                self.kernel.after(latency, partial(self.scheduler.post, action))
            case CancelTokens(worker_id, stream_ids):
                for stream_id in stream_ids:
                    cancel = CancelStream(StreamKey(GATEWAY, stream_id))
                    self.kernel.after(latency, partial(self._post_worker, worker_id, cancel))
            case Deliver():
                self._deliver(action)
            case Fail(request_id, error):
                self._close(request_id, error=error.message)

    def _deliver(self, action: Deliver) -> None:
        steps, num_steps = self._steps, self._num_steps
        for delivery in action.deliveries:
            request_id = delivery.request_id
            if delivery.token_id is not None:
                count = 1 + len(delivery.before)
                skipped = num_steps - count
                first_at = steps.ends_at(skipped + 1)
                step = steps.step + (skipped + 1) * steps.growth
                segment = Segment(count, first_at, step, steps.growth)
                self.records[request_id].add(segment)
            if delivery.finish_reason is not None:
                self._close(request_id)

    def to_gateway(self, send: SendTokens, steps: Steps, num_steps: int) -> None:
        """Hand on tokens of a pass that ended now."""
        self._steps, self._num_steps = steps, num_steps
        self.gateway.post(send.batch)

    # --- the scheduler ----------------------------------------------------------------

    def _perform_scheduler(self, action: SchedulerAction) -> None:
        network = self.spec.network
        match action:
            case SendToWorker(worker_id, message):
                delay = network.dispatch_latency
                self.kernel.after(delay, partial(self._post_worker, worker_id, message))
            case SendToGateway(_, message):
                self.kernel.after(network.latency, partial(self.gateway.post, message))
            case Decision():
                if self.keeps_decisions:
                    self.decisions.append(action)

    def _post_worker(self, worker_id: str, message: object) -> None:
        worker = self._workers.get(worker_id)
        if worker is not None:
            worker.post(message)  # type: ignore[arg-type]  # orders are events of its core

    def to_scheduler(self, worker_id: str, message: FromWorker) -> None:
        """Hand on a worker's message after its latency."""
        event = WorkerReported(worker_id, message)
        self.kernel.after(self.spec.network.latency, partial(self._hear, worker_id, event))

    def _hear(self, worker_id: str, event: WorkerReported) -> None:
        if worker_id in self._workers:
            self.scheduler.post(event)


def _none() -> None:
    """Estimate nothing."""
