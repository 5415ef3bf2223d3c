"""A worker's process: its core, its paged engine, and its streams to everybody else."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable

from headway.cluster import Role, WorkerInfo
from headway.core.worker.core import WorkerCore
from headway.core.worker.events import (
    AcceptKv,
    AcknowledgeKv,
    AskPredictor,
    GatewayGone,
    LeaderConnected,
    PassFailed,
    Predicted,
    PredictorKnown,
    RefuseKv,
    SendTokens,
    StartTransfer,
    StopTransfer,
    WorkerAction,
    WorkerEvent,
)
from headway.core.worker.leaders import SUPERSEDED, farewell, require_meant
from headway.engine import PassFailure
from headway.errors import HeadwayError
from headway.forward_pass import ForwardPass
from headway.messages import (
    CancelStream,
    ChangeRole,
    ControlHello,
    Drain,
    FromWorker,
    GiveBack,
    HandedBack,
    Handoff,
)
from headway.request import StreamKey
from proof.vopr.engine import PagedEngine
from proof.vopr.invariants import check_blocks
from proof.vopr.network import End, Packed, packed, parsed
from proof.vopr.process import SimulatedDriver
from proof.vopr.store import MEMBER_TTL, LeasedMember
from proof.vopr.transfers import KvProcess, SimulatedKvReceiver, SimulatedKvSender
from proof.vopr.world import BLOCK_SIZE, DEVICE_FAILED, MODEL, World
from services.runtime import wire

GATEWAY_PATIENCE = 5.0
_FAREWELL = 0.1
_PREDICTOR = "p0"


class WorkerProcess(KvProcess):
    """One life of a worker, as ``services.worker`` shells its core."""

    def __init__(self, world: World, name: str, skew: float, worker_id: str, role: Role) -> None:
        super().__init__(world.kernel, name, skew)
        self.world = world
        self.worker_id = worker_id
        self.role = role
        self.engine_drag = 1.0
        """How many times longer its passes take."""
        self.pass_failures = 0
        """Passes that will fail, for the device's sake."""
        self.gone: Callable[[], None] = lambda: None
        self.is_draining = False
        shape, policies = world.shape, world.policies
        info = WorkerInfo(
            worker_id,
            name,
            role,
            MODEL,
            shape.num_units,
            shape.chunk_tokens,
            BLOCK_SIZE,
            shape.num_blocks,
            10_000,
            4,
        )
        self.core = WorkerCore(
            info,
            [0],
            policies.make_batching(),
            policies.worker,
            estimation=policies.make_estimation(),
        )
        units = shape.num_units
        self.engine = PagedEngine(shape.num_blocks * units, shape.host_blocks * units, BLOCK_SIZE)
        self._passes: deque[ForwardPass] = deque()
        self.driver: SimulatedDriver[WorkerEvent, WorkerAction] = SimulatedDriver(
            self, self.core, self._perform
        )
        self._control: End | None = None
        self.fencing_token = 0
        self._links: dict[str, _TokenLink] = {}
        self.receiver = SimulatedKvReceiver(self)
        self._sender = SimulatedKvSender(self)
        world.network.listen(self, "Control", self._serve_control)
        world.network.listen(self, "TransferKv", self.receiver.serve)
        self._join()
        if shape.predict_every:
            self.after(0.1, lambda: self.post(PredictorKnown(True)))

    # --- life -------------------------------------------------------------------------

    def _join(self) -> None:
        if self.is_draining and not self.core.num_held:
            return
        store, member = self.world.store, LeasedMember("worker", self.worker_id, self.name)
        store.ask(self, lambda: store.join(member), lambda _: None, lambda: None)
        self.after(MEMBER_TTL / 3, self._join)

    def set_role(self, role: Role) -> None:
        """Take an operator's order to serve in another role."""
        if role is not self.role and not self.is_draining:
            self.role = role
            change = wire.SET_ROLE.unpack(wire.SET_ROLE.pack(ChangeRole(role)))
            self.world.hit("a worker changes its role")
            if self.core.num_held:
                self.world.hit("a worker changes its role with requests")
            self.post(change)

    def drain(self) -> None:
        """Take SIGTERM: tell the scheduler, and end when nothing is held."""
        if not self.is_draining:
            self.is_draining = True
            if self.core.num_held:
                self.world.hit("a worker drains with requests")
            self.post(Drain())
            self._end_when_empty()

    def _end_when_empty(self) -> None:
        if self.core.num_held:
            self.after(0.02, self._end_when_empty)
        else:
            self.after(_FAREWELL, self._leave)

    def _leave(self) -> None:
        self.world.hit("a worker has drained")
        store = self.world.store
        store.ask(self, lambda: store.leave(self.worker_id), lambda _: None, lambda: None)
        for link in list(self._links.values()):
            link.close()
        self.after(0.05, self.gone)

    # --- events and actions -----------------------------------------------------------

    def post(self, event: WorkerEvent) -> None:
        """Pass an event to the core, and check what it owns afterwards."""
        self.driver.post(event)
        check_blocks(self.world, self.name, self.core)

    def _perform(self, action: WorkerAction) -> None:
        match action:
            case ForwardPass():
                self._start_pass(action)
            case SendTokens():
                self._send_tokens(action)
            case StartTransfer():
                self._sender.start(action)
            case StopTransfer(key):
                self._sender.stop(key)
            case AcceptKv() | AcknowledgeKv() | RefuseKv():
                self.receiver.answer = action
            case AskPredictor():
                self._ask_predictor(action)
            case _:
                self._report(action)

    # --- passes -----------------------------------------------------------------------

    def _start_pass(self, forward_pass: ForwardPass) -> None:
        if forward_pass.swapped_out:
            self.world.hit("KV goes to host memory")
        if forward_pass.swapped_in:
            self.world.hit("KV comes back from host memory")
        if forward_pass.saved:
            self.world.hit("a prefix is saved to host memory")
        self.engine.begin(forward_pass)
        self._passes.append(forward_pass)
        if len(self._passes) == 1:
            self._run_next()
        else:
            self.world.hit("a pass is planned ahead")

    def _run_next(self) -> None:
        forward_pass = self._passes[0]
        num_tokens = sum(len(item.token_ids) for item in forward_pass.items)
        seconds = self.world.shape.pass_seconds * (1.0 + num_tokens / 32) * self.engine_drag
        self.after(seconds, lambda: self._ran(seconds))

    def _ran(self, seconds: float) -> None:
        forward_pass = self._passes.popleft()
        event: WorkerEvent
        try:
            if self.pass_failures:
                self.pass_failures -= 1
                keys = [item.key for item in forward_pass.items[:1]]
                raise PassFailure(keys, DEVICE_FAILED)
            event = self.engine.run(forward_pass, seconds)
        except PassFailure as failure:
            self.world.hit("a pass fails")
            self.world.failures.append(self.kernel.now)
            self.engine.failed()
            event = PassFailed(forward_pass.pass_id, failure.keys, failure.message)
        self.world.num_passes += 1
        if self._passes:
            self._run_next()
        self.post(event)

    # --- the leader (``services.worker.control``) -------------------------------------

    def _report(self, report: FromWorker) -> None:
        if isinstance(report, HandedBack) and report.keys:
            self.world.hit("a worker hands requests back")
        if self._control is not None:
            self._control.send(packed(wire.FROM_WORKER.pack(report)))

    def _serve_control(self, stream: End) -> None:
        stream.on_message = lambda message: self._greeted(stream, message)

    def _greeted(self, stream: End, message: Packed) -> None:
        hello = wire.TO_WORKER.unpack(parsed(message), now=self.now())
        assert isinstance(hello, ControlHello), "a leader greets first"
        try:
            require_meant(hello, self.worker_id)
        except HeadwayError as error:
            self.world.hit("a leader means the worker before")
            stream.close(error.message)
            return
        if hello.fencing_token < self.fencing_token:
            self.world.hit("a worker refuses a deposed leader")
            stream.close(SUPERSEDED)
            return
        if self._control is not None:
            self._control.close(farewell(hello.fencing_token, self.fencing_token).message)
        self.fencing_token = hello.fencing_token
        self._control = stream
        stream.on_message = lambda order: self._obey(order, hello.fencing_token)
        stream.on_break = lambda _: self._control_ended(stream)
        self.post(LeaderConnected(hello.wants, hello.fencing_token))

    def _control_ended(self, stream: End) -> None:
        if self._control is stream:
            self._control = None

    def _obey(self, message: Packed, token: int) -> None:
        order = wire.TO_WORKER.unpack(parsed(message), now=self.now())
        assert not isinstance(order, ControlHello), "a leader greets once"
        world = self.world
        world.require(
            token == self.fencing_token, "one fencing owner", f"{self.name} obeys {order}"
        )
        if isinstance(order, Handoff):
            detail = f"{self.name} is told by {token} to hand off for {order.fencing_token}"
            world.require(order.fencing_token == token, "one fencing owner", detail)
        elif isinstance(order, GiveBack):
            world.hit("a worker is asked to hand back")
        elif isinstance(order, CancelStream):
            self._note_cancel(order.key)
        self.post(order)

    def _note_cancel(self, key: StreamKey) -> None:
        sequence = self.core.find(key)
        if sequence is not None:
            self.world.hit(f"a request is cancelled while {sequence.stage.name}")
            if sequence.departure is not None:
                self.world.hit("a request is cancelled while it moves")

    # --- gateways (``services.worker.token_link``) ------------------------------------

    def _send_tokens(self, action: SendTokens) -> None:
        link = self._links.get(action.gateway_id)
        if link is None:
            link = self._links[action.gateway_id] = _TokenLink(self, action)
        link.send(packed(wire.pack_token_batch(action.batch)))

    def link_ended(self, gateway_id: str) -> None:
        """Forget a gateway's stream that has broken."""
        self._links.pop(gateway_id, None)
        self.post(GatewayGone(gateway_id))

    def cancel(self, gateway_id: str, stream_ids: tuple[int, ...]) -> None:
        """Take a gateway's cancels."""
        for stream_id in stream_ids:
            key = StreamKey(gateway_id, stream_id)
            self._note_cancel(key)
            self.post(CancelStream(key))

    # --- the predictor (``services.worker.predictor_link``) ---------------------------

    def _ask_predictor(self, action: AskPredictor) -> None:
        question = wire.pack_question(
            MODEL, action.hidden, action.num_output_tokens, [], action.num_prompt_tokens
        )
        keys, counts = action.hidden.keys, action.num_output_tokens

        def answered(reply: Packed) -> None:
            remaining = struct.unpack(f"<{len(keys)}d", reply[1])
            self.world.hit("the predictor answers")
            self.post(Predicted(keys, counts, remaining))

        self.world.network.call(self, _PREDICTOR, "Predict", packed(question), answered)


class _TokenLink:
    """The stream to one gateway, opened at the first token for it."""

    def __init__(self, worker: WorkerProcess, first: SendTokens) -> None:
        self._worker = worker
        self._gateway_id = first.gateway_id
        self._queue: list[Packed] = []
        self._stream: End | None = None
        self._ended = False
        dial = worker.world.network.dial
        address = first.gateway_address
        dial(worker, address, "Attach", self._opened, self._broken, GATEWAY_PATIENCE)

    def send(self, batch: Packed) -> None:
        """Send a batch, or keep it until the stream is open."""
        if self._stream is None:
            self._queue.append(batch)
        else:
            self._stream.send(batch, repeatable=True)

    def close(self) -> None:
        """End the stream after everything queued."""
        self._ended = True
        if self._stream is not None:
            self._stream.close("the worker leaves")

    def _opened(self, stream: End) -> None:
        self._stream = stream
        stream.on_message = self._cancels
        stream.on_break = self._broken
        for batch in self._queue:
            stream.send(batch, repeatable=True)
        self._queue.clear()
        if self._ended:
            stream.close("the worker leaves")

    def _broken(self, _: str) -> None:
        if not self._ended:
            self._ended = True
            self._worker.link_ended(self._gateway_id)

    def _cancels(self, message: Packed) -> None:
        ids = struct.unpack(f"<{len(message[1]) // 8}Q", message[1])
        self._worker.cancel(self._gateway_id, ids)
