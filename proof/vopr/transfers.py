"""KV from worker to worker: the sender and the receiver, as ``services.worker`` has them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from headway.blocks import blocks_for
from headway.core.worker.events import (
    AcceptKv,
    AcknowledgeKv,
    KvAborted,
    KvArrived,
    KvContinued,
    KvOffered,
    KvSent,
    RefuseKv,
    StartTransfer,
    TransferEnded,
    WorkerEvent,
)
from headway.errors import Code
from headway.messages import KvHeader, KvPart
from headway.request import StreamKey
from proof.vopr.engine import PagedEngine
from proof.vopr.network import End, Packed, packed, parsed
from proof.vopr.process import SimulatedProcess
from proof.vopr.world import BLOCK_SIZE, World
from services.runtime import wire

_RECEIPT = (bytes, b"receipt")
_FULL = Code.RESOURCE_EXHAUSTED.name


class KvProcess(SimulatedProcess, ABC):
    """A process whose core sends and takes KV."""

    world: World
    engine: PagedEngine
    fencing_token: int
    """The newest leader that has greeted it."""

    @abstractmethod
    def post(self, event: WorkerEvent) -> None:
        """Pass an event to the core."""


class SimulatedKvSender:
    """All transfers that leave one worker."""

    def __init__(self, worker: KvProcess) -> None:
        self._worker = worker
        self._transfers: dict[StreamKey, _Transfer] = {}

    def start(self, action: StartTransfer) -> None:
        """Start a transfer, or continue one that waits for more."""
        transfer = self._transfers.get(action.request.key)
        if transfer is None:
            transfer = self._transfers[action.request.key] = _Transfer(self._worker, self, action)
        transfer.add(action)

    def stop(self, key: StreamKey) -> None:
        """End a transfer at once, also one whose target hangs."""
        transfer = self._transfers.get(key)
        if transfer is not None:
            transfer.call_off()

    def ended(self, transfer: _Transfer, error: str) -> None:
        """Report the end of a transfer."""
        handoff = transfer.last.handoff
        del self._transfers[handoff.key]
        if error:
            self._worker.world.hit("a transfer of KV is interrupted")
        elif transfer.num_parts > 1:
            self._worker.world.hit("a request moves while it runs")
        else:
            self._worker.world.hit("a request is handed off")
        self._worker.post(
            TransferEnded(
                handoff.key, handoff.target_worker_id, handoff.target_unit, not error, error
            )
        )


class _Transfer:
    """One transfer: parts that wait, and the stream in use."""

    def __init__(self, worker: KvProcess, sender: SimulatedKvSender, first: StartTransfer) -> None:
        self.last = first
        self.num_parts = 0
        self._worker = worker
        self._sender = sender
        self._parts: deque[StartTransfer] = deque()
        self._stream: End | None = None
        self._num_known: int | None = None  # output tokens that the target has been told
        self._num_tries = 0
        self._is_over = False
        self._dial()

    def add(self, part: StartTransfer) -> None:
        """Queue the next part."""
        self.last = part
        self._parts.append(part)
        self._send_all()

    def call_off(self) -> None:
        """End it soon, in a turn of its own."""
        self._worker.world.hit("a transfer of KV is called off")
        self._worker.after(0.0, lambda: self._end("the transfer was called off"))

    def _dial(self) -> None:
        self._num_tries += 1
        number = self._num_tries
        worker, address = self._worker, self.last.handoff.target_address
        timeout = worker.world.times.transfer_timeout
        worker.after(timeout, lambda: self._failed("it took too long", number))

        def opened(stream: End) -> None:
            if self._is_over or number != self._num_tries:
                stream.close("too late")
                return
            self._stream = stream
            stream.on_message = lambda _: self._end("")
            stream.on_break = lambda reason: self._failed(reason, number)
            self._send_all()

        worker.world.network.dial(
            worker, address, "TransferKv", opened, lambda reason: self._failed(reason, number)
        )

    def _send_all(self) -> None:
        while self._stream is not None and self._parts:
            self._send(self._stream, self._parts.popleft())

    def _send(self, stream: End, part: StartTransfer) -> None:
        """Send what the target lacks: a header or a part, then its blocks."""
        held = part.host_blocks or part.blocks
        blocks = held[part.first_token // BLOCK_SIZE : blocks_for(part.num_computed_tokens, 4)]
        data = self._worker.engine.read(blocks, from_host=bool(part.host_blocks))
        now = self._worker.now()
        stream.send(packed(wire.KV.pack(self._opening(part, blocks, len(data)), now=now)))
        self._num_known = len(part.request.output_token_ids)
        self.num_parts += 1
        middle = len(data) // 8 * 4
        takes = self._worker.world.shape.kv_seconds
        for piece in (data[:middle], data[middle:]):
            if piece:
                stream.send(packed(wire.KV.pack(piece, now=now)), takes=takes)
        if part.more:
            worker, key = self._worker, part.request.key
            worker.after(1e-3 + takes, lambda: worker.post(KvSent(key)))
        else:
            stream.send((bytes, b"end"))

    def _opening(
        self, part: StartTransfer, blocks: Sequence[int], num_bytes: int
    ) -> KvHeader | KvPart:
        shape = (1, 2, len(blocks) * BLOCK_SIZE, 1, 1)
        if self._num_known is not None:
            output = part.request.output_token_ids[self._num_known :]
            return KvPart(part.first_token, part.num_computed_tokens, output, shape, part.more)
        return KvHeader(
            part.request,
            part.handoff.target_unit,
            part.num_computed_tokens,
            num_bytes,
            BLOCK_SIZE,
            "float32",
            shape,
            part.more,
            part.handoff.fencing_token,
        )

    def _failed(self, reason: str, number: int) -> None:
        """Try the whole of a stopped request once more; else give up."""
        if self._is_over or number != self._num_tries:
            return
        if self._stream is not None:
            self._stream.close("given up")
            self._stream = None
        if number > 1 or self.last.more or reason.startswith(_FULL):
            self._end(reason)
            return
        self._worker.world.hit("a transfer of KV is tried again")
        self._num_known = None
        self._parts = deque([replace(self.last, first_token=0)])
        self._dial()

    def _end(self, error: str) -> None:
        if not self._is_over:
            self._is_over = True
            if self._stream is not None:
                self._stream.close("done")
            self._sender.ended(self, error)


class SimulatedKvReceiver:
    """All transfers that arrive at one worker."""

    def __init__(self, worker: KvProcess) -> None:
        self.answer: AcceptKv | AcknowledgeKv | RefuseKv | None = None
        self._worker = worker

    def serve(self, stream: End) -> None:
        """Take one transfer."""
        arrival = _Arrival(self, self._worker, stream)
        stream.on_message = arrival.take
        stream.on_break = arrival.broken

    def ask(self, question: KvOffered | KvContinued) -> AcceptKv | AcknowledgeKv | RefuseKv:
        """Return the core's answer to an offer."""
        self.answer = None
        self._worker.post(question)
        assert self.answer is not None, "the core answers every offer at once"
        return self.answer


class _Arrival:
    """One transfer that arrives."""

    def __init__(self, receiver: SimulatedKvReceiver, worker: KvProcess, stream: End) -> None:
        self._receiver = receiver
        self._worker = worker
        self._stream = stream
        self._accepted: AcceptKv | None = None
        self._first = self._stop = 0
        self._data = b""
        self._more = False

    def take(self, message: Packed) -> None:
        """Take a header, a part, bytes, or the sender's last word."""
        if message[0] is bytes:
            self._finish()
            return
        said = wire.KV.unpack(parsed(message), now=self._worker.now())
        if isinstance(said, bytes):
            self._data += said
            return
        self._write()
        if isinstance(said, KvHeader):
            self._offered(said)
        else:
            self._continued(said)

    def _offered(self, header: KvHeader) -> None:
        world, worker = self._worker.world, self._worker
        answer = self._receiver.ask(KvOffered(header))
        if isinstance(answer, RefuseKv):
            self._refuse(answer)
            return
        if isinstance(answer, AcknowledgeKv):
            world.hit("an offer is acknowledged without KV")
            self._stream.send(_RECEIPT)
            return
        is_ours = header.fencing_token >= worker.fencing_token
        detail = f"{worker.name} takes KV for {header.fencing_token} after {worker.fencing_token}"
        world.require(is_ours, "one fencing owner", detail)
        if answer.host_blocks:
            world.hit("KV arrives in host memory")
        self._accepted = answer
        self._first, self._stop = 0, header.num_computed_tokens
        self._more = header.more

    def _continued(self, part: KvPart) -> None:
        accepted = self._accepted
        if accepted is None:
            return
        question = KvContinued(accepted.key, part.num_computed_tokens, part.output_token_ids)
        answer = self._receiver.ask(question)
        if isinstance(answer, RefuseKv):
            self._refuse(answer)
            self._abort()
            return
        assert isinstance(answer, AcceptKv), "what arrives does not run here"
        self._accepted = answer
        self._first, self._stop = part.first_token, part.num_computed_tokens
        self._more = part.more

    def _refuse(self, answer: RefuseKv) -> None:
        code = answer.error.code
        self._worker.world.hit(f"KV is refused: {code.name}")
        self._stream.close(f"{code.name}: {answer.error.message}")

    def _write(self) -> None:
        """Write what has come of the newest part into its blocks."""
        accepted, data = self._accepted, self._data
        self._data = b""
        if accepted is not None and data:
            blocks, to_host = accepted.host_blocks or accepted.blocks, bool(accepted.host_blocks)
            self._worker.engine.write(blocks, data, self._first, self._stop, to_host=to_host)

    def _finish(self) -> None:
        self._write()
        accepted, self._accepted = self._accepted, None
        if accepted is not None:
            assert not self._more, "the last part says so"
            self._worker.post(KvArrived(accepted.key))
            self._stream.send(_RECEIPT)

    def broken(self, _: str) -> None:
        """Drop what has come."""
        self._abort()

    def _abort(self) -> None:
        accepted, self._accepted = self._accepted, None
        if accepted is not None:
            self._worker.world.hit("KV on its way is lost")
            self._worker.post(KvAborted(accepted.key))
