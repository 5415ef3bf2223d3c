"""Worker cores with real backends and no wire: passes and moves go on when the test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from headway.cluster import Role, WorkerInfo
from headway.core.worker.core import WorkerCore, WorkerSettings
from headway.core.worker.events import (
    AcceptKv,
    AcknowledgeKv,
    KvAborted,
    KvArrived,
    KvContinued,
    KvOffered,
    KvSent,
    PassFailed,
    RefuseKv,
    SendTokens,
    StartTransfer,
    StopTransfer,
    TransferEnded,
    WorkerEvent,
)
from headway.engine import IncomingKv, PassFailure
from headway.forward_pass import ForwardPass, PassResult
from headway.messages import Dispatch, KvHeader, UnitBatch
from headway.policies import registry
from headway.request import Request, StreamKey
from services.worker.engine.backend import TorchBackend

MODEL = "tiny"
Answer = AcceptKv | AcknowledgeKv | RefuseKv


@dataclass
class Client:
    """What reaches the clients: every token once, and how each request ended."""

    tokens: dict[int, dict[int, int]] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)
    ends: dict[int, str] = field(default_factory=dict)

    def take(self, action: SendTokens) -> None:
        batch = action.batch
        for n, (stream_id, index, token_id, reason) in enumerate(
            zip(batch.stream_ids, batch.indices, batch.token_ids, batch.finish_reasons, strict=True)
        ):
            stream = self.tokens.setdefault(stream_id, {})
            assert index == len(stream), "tokens come once and in order"
            stream[index] = token_id
            if n in batch.num_cached:
                assert index == 0
                self.cached[stream_id] = batch.num_cached[n]
            if reason is not None:
                self._end(stream_id, reason.value)
        for failure in batch.failures:
            self._end(failure.stream_id, failure.finish_reason.value)

    def _end(self, stream_id: int, reason: str) -> None:
        assert stream_id not in self.ends, "a request ends once"
        self.ends[stream_id] = reason

    def output(self, stream_id: int) -> list[int]:
        return list(self.tokens.get(stream_id, {}).values())


@dataclass
class Move:
    """One transfer on its way: the sender's parts, and what the receiver has agreed to."""

    source: EngineWorker
    target: EngineWorker
    parts: deque[StartTransfer]
    last: StartTransfer
    num_told: int = 0
    answer: AcceptKv | None = None
    began: bool = False
    stopped: bool = False

    def step(self) -> None:
        """Offer the next part, or bring what was agreed to."""
        if self.answer is not None:
            self._deliver(self.answer)
        elif self.parts:
            self._offer(self.parts[0])
        elif self.stopped:
            self.break_off()

    def _offer(self, part: StartTransfer) -> None:
        key, output = part.request.key, part.request.output_token_ids
        if part.first_token:
            new = output[self.num_told :]
            answer = self.target.ask(KvContinued(key, part.num_computed_tokens, new))
        else:
            backend = self.source.backend
            shape, unit = backend.kv_shape(1), part.handoff.target_unit
            header = KvHeader(
                part.request, unit, part.num_computed_tokens, 0, 1, backend.info.dtype, shape
            )
            answer = self.target.ask(KvOffered(header))
        self.num_told = len(output)
        if isinstance(answer, AcceptKv):
            self.answer, self.began = answer, True
        else:
            self.break_off()

    def _deliver(self, answer: AcceptKv) -> None:
        part, backend = self.parts.popleft(), self.source.backend
        size = backend.info.block_size
        held = part.host_blocks or part.blocks
        blocks = held[part.first_token // size : -(-part.num_computed_tokens // size)]
        self.target.save_first()
        writer = self.target.backend.kv_writer(
            IncomingKv(
                answer.host_blocks or answer.blocks,
                backend.kv_shape(len(blocks)),
                backend.info.dtype,
                part.num_computed_tokens,
                part.first_token,
                bool(answer.host_blocks),
            )
        )
        for piece in backend.read_kv(blocks, from_host=bool(part.host_blocks)):
            writer.feed(piece)
        writer.finish()
        self.answer = None
        if part.more:
            self.source.post(KvSent(part.request.key))
        else:
            self.target.post(KvArrived(part.request.key))
            self._end(ok=True)

    def break_off(self) -> None:
        """The stream breaks, and both sides are told."""
        if self.began:
            self.target.post(KvAborted(self.last.request.key))
        self._end(ok=False)

    def _end(self, *, ok: bool) -> None:
        handoff = self.last.handoff
        del self.source.moves[handoff.key]
        self.source.post(
            TransferEnded(handoff.key, handoff.target_worker_id, handoff.target_unit, ok)
        )


class EngineWorker:
    """One core and its backend. Passes are computed as planned (``eager``), or when they end."""

    def __init__(
        self,
        name: str,
        backend: TorchBackend,
        client: Client,
        *,
        batching: str = "fcfs",
        chunk: int = 512,
        max_len: int = 512,
        eager: bool = True,
        swap_time: float = 0.0,
        **settings: int | float | bool,
    ) -> None:
        info = WorkerInfo(
            name,
            name,
            Role.UNIFIED,
            MODEL,
            1,
            chunk,
            backend.info.block_size,
            backend.info.num_blocks,
            max_len,
            backend.info.kv_bytes_per_token,
        )
        host_tokens = backend.info.num_host_blocks * backend.info.block_size
        chosen: dict[str, object] = {"move_rounds": 0, **settings}
        limits = WorkerSettings(host_tokens=host_tokens, **chosen)  # type: ignore[arg-type]  # any
        self.core = WorkerCore(info, (), registry.make("batching", batching), limits)
        self.backend = backend
        self.client = client
        self.peers: dict[str, EngineWorker] = {}
        self.moves: dict[StreamKey, Move] = {}
        self.flying: deque[ForwardPass] = deque()
        self.num_swaps = self.num_ahead = 0
        self._eager = eager
        self._swap_time = swap_time
        self._results: deque[PassResult | PassFailed] = deque()  # of the first of them
        self._answer: Answer | None = None
        self._now = 0.0

    def post(self, event: WorkerEvent) -> None:
        self._now += 0.001
        for action in self.core.handle(event, now=self._now):
            match action:
                case ForwardPass():
                    self.num_ahead += bool(self.flying)
                    self.flying.append(action)
                    self.num_swaps += len(action.swapped_out)
                    if self._eager:
                        self._compute()
                case SendTokens():
                    self.client.take(action)
                case StartTransfer():
                    self._send(action)
                case StopTransfer(key):
                    self.moves[key].stopped = True
                case AcceptKv() | AcknowledgeKv() | RefuseKv():
                    self._answer = action

    def decoding(self) -> list[StreamKey]:
        """Requests that could move."""
        return [s.key for s in self.core.units[0].sequences.values() if s.decoding]

    def ask(self, question: KvOffered | KvContinued) -> Answer:
        self._answer = None
        self.post(question)
        assert self._answer is not None
        return self._answer

    def _send(self, part: StartTransfer) -> None:
        move = self.moves.get(part.request.key)
        if move is None:
            target = self.peers[part.handoff.target_worker_id]
            move = self.moves[part.request.key] = Move(self, target, deque(), part)
        move.parts.append(part)
        move.last = part

    # --- passes -----------------------------------------------------------------------

    def _compute(self) -> None:
        """The next pass that has not been computed."""
        forward_pass = self.flying[len(self._results)]
        try:
            result = self.backend.run(forward_pass)
        except PassFailure as failed:
            self._results.append(PassFailed(forward_pass.pass_id, failed.keys, failed.message))
        else:  # times would make decisions that no test could repeat
            swap_time = self._swap_time if result.swap_time else 0.0
            self._results.append(replace(result, pass_time=0.01, swap_time=swap_time))

    def save_first(self) -> None:
        """What is written from elsewhere waits until a pass has saved its own."""
        while any(each.swapped_out for each in list(self.flying)[len(self._results) :]):
            self._compute()

    def run_pass(self) -> bool:
        if not self.flying:
            return False
        if not self._results:
            self._compute()
        self.flying.popleft()
        self.post(self._results.popleft())
        return True

    def leaks(self) -> Iterator[str]:
        """What a worker that holds nothing should not hold."""
        (unit,) = self.core.units
        unit.host.settle()
        if self.core.num_held:
            yield f"{self.core.num_held} requests"
        if unit.pool.num_free != self.backend.info.num_blocks:
            yield f"{self.backend.info.num_blocks - unit.pool.num_free} blocks"
        if unit.host.num_free != self.backend.info.num_host_blocks:
            yield f"{self.backend.info.num_host_blocks - unit.host.num_free} host blocks"
        if any(unit.pool._refs) or unit.pool._num_shared_refs:
            yield "references"


def run_alone(backend: TorchBackend, request: Request, max_len: int) -> list[int]:
    """What it generates with a worker to itself, nothing cached, nothing moved."""
    client = Client()
    worker = EngineWorker("alone", backend, client, max_len=max_len)
    worker.post(Dispatch(1, (UnitBatch(0, (request,)),)))
    while worker.run_pass():
        pass
    return client.output(request.stream_id)
