"""A whole cluster of real cores on one thread: every link a queue, every step the test's choice.

Only the model is fake (``paged_fake``). Whatever order messages, passes, transfers, deaths and
elections come in, clients must read what an endless memory would generate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from headway.cluster import Role, WorkerInfo
from headway.core.gateway.core import GatewayCore
from headway.core.gateway.events import (
    CancelTokens,
    Deliver,
    Fail,
    GatewayAction,
    GatewayEvent,
    Release,
    SchedulerConnected,
    Submit,
    WorkerDetached,
)
from headway.core.gateway.events import SchedulerDisconnected as GatewayLostScheduler
from headway.core.gateway.settings import GatewaySettings
from headway.core.scheduler.core import SchedulerCore
from headway.core.scheduler.events import (
    Elected,
    GatewayConnected,
    GatewayDisconnected,
    Learned,
    Persist,
    SavedRequest,
    SchedulerAction,
    SchedulerEvent,
    SendToGateway,
    SendToWorker,
    WorkerGone,
    WorkerReported,
)
from headway.core.scheduler.settings import SchedulerSettings
from headway.core.worker.core import WorkerCore, WorkerSettings
from headway.core.worker.events import (
    AcceptKv,
    AcknowledgeKv,
    AskPredictor,
    KvAborted,
    KvArrived,
    KvOffered,
    LeaderConnected,
    RefuseKv,
    SendTokens,
    StartTransfer,
    StopTransfer,
    TellKv,
    TransferEnded,
    WorkerAction,
    WorkerEvent,
)
from headway.forward_pass import ForwardPass
from headway.messages import CancelStream, ChangeRole, Drain, KvHeader
from headway.policies.batching.sarathi import Sarathi
from headway.request import Request, SamplingParams, StreamKey
from tests.fakes.cluster_parts import FakeWorker, Transfer
from tests.fakes.paged import EOS, PagedFake


class Cluster:
    """Steps are offered by ``steps``; ``settle`` runs them all, and the clock, to the end."""

    def __init__(self, roles: list[Role], settings: SchedulerSettings, **shape: int) -> None:
        self.now = 1000.0
        self.settings = settings
        self.shape = {"units": 1, "chunk": 16, "blocks": 24, "block_size": 4, **shape}
        self.roles = list(roles)
        self.worker_ids = [""] * len(roles)  # by place; a new life has a new id
        self.num_lives = 0
        self.num_streams = 0
        self.streams: dict[str, int] = {}  # the newest to each worker
        self.workers: dict[str, FakeWorker] = {}
        self.links: dict[tuple[str, str], deque[Callable[[], None]]] = {}
        self.moving: list[Transfer] = []
        self.outputs: dict[str, list[int]] = {}
        self.ended: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self.num_submitted = 0
        patient = GatewaySettings(
            10_000, max_attempts=10_000, max_deaths=10_000, request_timeout=1e6, num_lives=10_000
        )
        self.gateway = GatewayCore("g", "g:1", patient)
        self.token = 0
        self.saved: dict[StreamKey, SavedRequest] = {}
        self.learned: dict[str, Learned] = {}
        self.draining: list[str] = []
        for place in range(len(roles)):
            self.start_worker(place)
        self.elect()

    # --- lives ------------------------------------------------------------------------

    def elect(self, num_arriving: int = 0) -> None:
        """A new leader knows what is in the store: the members, and what its predecessor wrote.

        The first ``num_arriving`` orders that are on their way to each worker get there all the
        same, before the new leader's hello.
        """
        self.token += 1
        for link in [k for k in self.links if "s" in k]:
            orders = self.links.pop(link)
            if link[1] in self.workers:
                self.links[link] = deque(list(orders)[:num_arriving])
        self.to_gateway(GatewayLostScheduler())
        self.scheduler = SchedulerCore(self.settings)
        saved, learned = tuple(self.saved.values()), tuple(self.learned.values())
        self.to_scheduler(Elected(self.token, tuple(self.workers), saved, learned))
        self.attach_gateway()
        for worker_id in self.workers:
            self.attach_worker(worker_id)

    def attach_gateway(self) -> None:
        self.to_scheduler(GatewayConnected("g"))
        self.to_gateway(SchedulerConnected())

    def attach_worker(self, worker_id: str) -> None:
        self.num_streams += 1
        self.streams[worker_id] = self.num_streams
        greet = partial(self.greet, self.workers[worker_id], self.num_streams, self.token)
        self.send("s", worker_id, greet)

    def greet(self, worker: FakeWorker, stream: int, token: int) -> None:
        """The hello of a new stream arrives: from now on nothing of an older one is obeyed."""
        if stream == self.streams[worker.info.worker_id]:
            worker.stream = stream
            self.to_worker(worker, LeaderConnected(fencing_token=token))

    def blip_gateway(self) -> None:
        """The gateway's stream to the scheduler breaks, and is opened again."""
        self.cut("g", "s")
        self.to_scheduler(GatewayDisconnected("g"))
        self.to_gateway(GatewayLostScheduler())
        self.attach_gateway()

    def blip_worker(self, place: int) -> None:
        """The scheduler's stream to a worker breaks, and is opened again."""
        worker_id = self.worker_ids[place]
        if worker_id in self.workers:
            self.cut(worker_id, "s")
            self.to_scheduler(WorkerGone(worker_id, "its stream broke"))
            self.attach_worker(worker_id)

    def start_worker(self, place: int) -> None:
        shape, role = self.shape, self.roles[place]
        worker_id = self.worker_ids[place] = f"{role.value}{place}.{self.num_lives}"
        self.num_lives += 1
        info = WorkerInfo(
            worker_id,
            f"{worker_id}:1",
            role,
            "m",
            shape["units"],
            shape["chunk"],
            shape["block_size"],
            shape["blocks"],
            1000,
            8,
        )
        core = WorkerCore(info, [EOS], Sarathi(), WorkerSettings(move_rounds=0, tells_lives=True))
        self.workers[worker_id] = FakeWorker(info, core, PagedFake(shape["block_size"]))

    def kill(self, place: int) -> None:
        """A process dies; what it had sent and nobody has read is lost."""
        worker_id = self.worker_ids[place]
        worker = self.workers.pop(worker_id, None)
        if worker is None:
            return
        self.cut(worker_id, "s")
        self.cut(worker_id, "g")
        for transfer in [t for t in self.moving if worker in (t.source, t.target)]:
            self.moving.remove(transfer)
            if transfer.target is worker:
                self.end_transfer(transfer, ok=False)
            else:
                self.to_worker(transfer.target, KvAborted(transfer.start.request.key))
        self.to_scheduler(WorkerGone(worker_id, "it died"))
        self.to_gateway(WorkerDetached(worker_id))

    def drain(self, place: int) -> None:
        """A worker is told to go; it ends when it holds nothing (``end_drains``)."""
        worker = self.workers.get(self.worker_ids[place])
        if worker is not None and worker.info.worker_id not in self.draining:
            self.draining.append(worker.info.worker_id)
            self.to_worker(worker, Drain())

    def end_drains(self) -> None:
        """Those that hold nothing go, and take what they had sent with them only if it is read."""
        for worker_id in list(self.draining):
            worker = self.workers.get(worker_id)
            said = self.links.get((worker_id, "s")) or self.links.get((worker_id, "g"))
            if worker is None or not (worker.core.num_held or said):
                self.draining.remove(worker_id)
                if worker is not None:
                    self.kill(self.worker_ids.index(worker_id))

    def change_role(self, place: int, role: Role) -> None:
        """A worker serves something else from now on, without a restart."""
        worker = self.workers.get(self.worker_ids[place])
        if worker is not None and worker.info.role is not role:
            self.roles[place] = role
            worker.info = replace(worker.info, role=role)
            self.to_worker(worker, ChangeRole(role))

    def revive(self, place: int) -> None:
        if self.worker_ids[place] not in self.workers:
            self.start_worker(place)
            self.attach_worker(self.worker_ids[place])

    def cut(self, one: str, other: str) -> None:
        self.links.pop((one, other), None)
        self.links.pop((other, one), None)

    # --- clients ----------------------------------------------------------------------

    def submit(self, num_prompt: int, max_tokens: int) -> None:
        request_id = f"r{self.num_submitted}"
        self.outputs[request_id] = []
        prompt = self.prompt(self.num_submitted, num_prompt)
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        self.num_submitted += 1
        self.to_gateway(Submit(Request(request_id, "m", prompt, sampling, self.now)))

    @staticmethod
    def prompt(number: int, num_prompt: int) -> tuple[int, ...]:
        return tuple((number * 7 + i) % 50 + 1 for i in range(num_prompt))

    def leave(self, number: int) -> None:
        """A client hangs up."""
        request_id = f"r{number}"
        if request_id in self.outputs and request_id not in self.ended:
            self.ended[request_id] = "left"
            self.to_gateway(Release(request_id))

    # --- events and actions -----------------------------------------------------------

    def send(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        self.links.setdefault((source, target), deque()).append(deliver)

    def to_gateway(self, event: GatewayEvent) -> None:
        for action in self.gateway.handle(event, now=self.now):
            self.perform_gateway(action)

    def perform_gateway(self, action: GatewayAction) -> None:
        if isinstance(action, Deliver):
            for request_id, token_id, _, reason, *_ in action.deliveries:
                if token_id is not None:
                    self.outputs[request_id].append(token_id)
                if reason is not None:
                    assert request_id not in self.ended, "a request ends once"
                    self.ended[request_id] = reason.value
        elif isinstance(action, Fail):
            self.failed[action.request_id] = action.error.message
        elif isinstance(action, CancelTokens):
            worker = self.workers.get(action.worker_id)
            if worker is not None:
                for stream_id in action.stream_ids:
                    self.to_worker(worker, CancelStream(StreamKey("g", stream_id)))
        else:
            self.send("g", "s", partial(self.to_scheduler, action))

    def to_scheduler(self, event: SchedulerEvent) -> None:
        for action in self.scheduler.handle(event, now=self.now):
            self.perform_scheduler(action)

    def perform_scheduler(self, action: SchedulerAction) -> None:
        if isinstance(action, SendToGateway):
            self.send("s", "g", partial(self.to_gateway, action.message))
        elif isinstance(action, SendToWorker) and action.worker_id in self.workers:
            worker = self.workers[action.worker_id]
            self.send("s", action.worker_id, partial(self.to_worker, worker, action.message))
        elif isinstance(action, Persist):
            self.send("s", "store", partial(self.write_down, action))

    def write_down(self, persist: Persist) -> None:
        """The store takes one write; those that were on their way when a leader died are lost."""
        self.saved |= {each.key: each for each in persist.saved}
        self.learned |= {each.model: each for each in persist.learned}
        for key in persist.ended:
            self.saved.pop(key, None)

    def to_worker(self, worker: FakeWorker, event: WorkerEvent) -> None:
        for action in worker.core.handle(event, now=self.now):
            self.perform_worker(worker, action)

    def perform_worker(self, worker: FakeWorker, action: WorkerAction) -> None:
        worker_id = worker.info.worker_id
        if isinstance(action, ForwardPass):
            worker.passes.append(action)
        elif isinstance(action, StartTransfer):
            worker.transfers.append(action)
        elif isinstance(action, AcceptKv | AcknowledgeKv | RefuseKv):
            worker.answers[action.key] = action
        elif isinstance(action, SendTokens):
            self.send(worker_id, "g", partial(self.to_gateway, action.batch))
        elif isinstance(action, AskPredictor | StopTransfer | TellKv):
            return
        elif worker.stream == self.streams[worker_id]:
            report = WorkerReported(worker_id, action)
            self.send(worker_id, "s", partial(self.to_scheduler, report))

    # --- steps ------------------------------------------------------------------------

    def steps(self) -> list[Callable[[], None]]:
        """All that could happen next, in a fixed order."""
        steps: list[Callable[[], None]] = [
            partial(self.deliver, link) for link in sorted(self.links) if self.links[link]
        ]
        for worker in self.workers.values():
            if worker.passes:
                steps.append(partial(self.run_pass, worker))
            if worker.transfers:
                steps.append(partial(self.offer, worker))
        return steps + [partial(self.arrive, transfer) for transfer in self.moving]

    def deliver(self, link: tuple[str, str]) -> None:
        self.links[link].popleft()()

    def run_pass(self, worker: FakeWorker) -> None:
        self.to_worker(worker, worker.model.run(worker.passes.popleft()))

    def offer(self, source: FakeWorker) -> None:
        """A transfer's header reaches its target."""
        start = source.transfers.popleft()
        target = self.workers.get(start.handoff.target_worker_id)
        if target is None:
            self.end_transfer(Transfer(source, source, start, None), ok=False)
            return
        tokens = len(source.model.read(start.blocks))
        header = KvHeader(
            start.request,
            start.handoff.target_unit,
            start.num_computed_tokens,
            0,
            1,
            "int",
            (1, 2, tokens, 1, 1),
            fencing_token=start.handoff.fencing_token,
        )
        self.to_worker(target, KvOffered(header))
        answer = target.answers.pop(start.request.key)
        blocks = answer.blocks if isinstance(answer, AcceptKv) else None
        transfer = Transfer(source, target, start, blocks)
        if isinstance(answer, RefuseKv):
            self.end_transfer(transfer, ok=False)
        else:
            self.moving.append(transfer)

    def arrive(self, transfer: Transfer) -> None:
        """A transfer's data is there, and acknowledged."""
        self.moving.remove(transfer)
        if transfer.blocks is not None:
            tokens = transfer.source.model.read(transfer.start.blocks)
            num_slots = len(transfer.blocks) * self.shape["block_size"]
            transfer.target.model.write(transfer.blocks, tokens[:num_slots])
            self.to_worker(transfer.target, KvArrived(transfer.start.request.key))
        self.end_transfer(transfer, ok=True)

    def end_transfer(self, transfer: Transfer, *, ok: bool) -> None:
        handoff = transfer.start.handoff
        ended = TransferEnded(handoff.key, handoff.target_worker_id, handoff.target_unit, ok)
        self.to_worker(transfer.source, ended)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        cores: list[tuple[Any, Callable[[Any], None]]] = [
            (self.gateway, self.perform_gateway),
            (self.scheduler, self.perform_scheduler),
        ]
        for core, perform in cores:
            for _ in range(1000):
                if core.next_wakeup is None or core.next_wakeup > self.now:
                    break
                for action in core.wake(now=self.now):
                    perform(action)
            else:
                raise AssertionError(f"{core} asks to be woken without end")

    def settle(self, limit: int = 200_000) -> None:
        """Run until every client has its answer and nothing moves."""
        for _ in range(limit):
            steps = self.steps()
            if steps:
                steps[0]()
                self.now += 1e-4
                self.pass_time(0.0)
                continue
            wakeups = [self.gateway.next_wakeup, self.scheduler.next_wakeup]
            due = [at for at in wakeups if at is not None and at < self.now + 1e5]
            if not due:
                return
            self.pass_time(max(min(due) - self.now, 0.0))
        raise AssertionError("the cluster never comes to rest")
