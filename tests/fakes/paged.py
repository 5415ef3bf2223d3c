"""A model for core tests: it reads its context from paged memory, so wrong paging shows."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from headway.core.worker.core import WorkerCore
from headway.core.worker.events import (
    AcceptKv,
    AcknowledgeKv,
    KvAborted,
    KvArrived,
    KvContinued,
    KvOffered,
    KvSent,
    RefuseKv,
    SendTokens,
    StartTransfer,
    StopTransfer,
    TransferEnded,
    WorkerAction,
    WorkerEvent,
)
from headway.forward_pass import PENDING, ForwardPass, PassItem, PassResult
from headway.messages import KvHeader
from headway.request import StreamKey
from proof.vopr.paged import PagedEngine

EOS = 0


def next_token(context: Sequence[int], vocabulary: int = 50) -> int:
    """Any function of the whole context will do; never EOS."""
    value = 17
    for position, token in enumerate(context):
        value = (value * 31 + token * (position + 7)) % 1_000_003
    return 1 + value % vocabulary


def expected_output(prompt: Sequence[int], count: int) -> list[int]:
    """What an endless memory would generate."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class PagedFake(PagedEngine):
    """Runs passes of one worker, with as many blocks as are named.

    Blocks that are swapped out lose what they held, unless they may be ``shared``.
    """

    def __init__(self, block_size: int) -> None:
        super().__init__(0, 0, block_size, next_token)
        self._device = defaultdict(self._unwritten)
        self._host = defaultdict(self._unwritten)
        self.shared = False
        self.is_late: Callable[[PassItem], bool] = lambda item: False
        self._late: set[StreamKey] = set()  # in the last pass

    def _unwritten(self) -> list[int]:
        return [-1] * self.block_size

    def run(self, forward_pass: ForwardPass, seconds: float = 0.01) -> PassResult:
        self.begin(forward_pass)
        if not self.shared:
            for block in (each for swap in forward_pass.swapped_out for each in swap.blocks):
                self._device[block] = self._unwritten()
        self.bring_back(forward_pass)
        before, items = self._late, forward_pass.items
        self._late = {x.key for x in items if x.sample and self.is_late(x)}
        known = tuple(x for x in items if not (x.key in before and PENDING in x.token_ids))
        done = super().run(replace(forward_pass, items=known, hidden=()), seconds)
        sampled = tuple(each for each in done.sampled if each.key not in self._late)
        self._drawn = {each.key: each.token_id for each in sampled}
        hidden = self._hidden([items[place] for place in forward_pass.hidden])
        return replace(done, sampled=sampled, hidden=hidden, late=tuple(sorted(self._late)))


class WorkerHarness:
    """One worker core with its fake model; passes run when the test says so."""

    def __init__(self, core: WorkerCore, block_size: int) -> None:
        self.core = core
        self.model = PagedFake(block_size)
        self.passes: deque[ForwardPass] = deque()
        self.log: list[WorkerAction] = []
        self.tokens: dict[int, dict[int, int]] = {}
        self.ends: dict[int, list[str]] = {}
        self.transfers: deque[StartTransfer] = deque()
        self.stopped: set[StreamKey] = set()  # among the transfers
        self.num_told: dict[StreamKey, int] = {}
        self.now = 0.0

    def post(self, event: WorkerEvent) -> list[WorkerAction]:
        self.now += 0.001
        actions = list(self.core.handle(event, now=self.now))
        for action in actions:
            self.log.append(action)
            if isinstance(action, ForwardPass):
                self.passes.append(action)
            elif isinstance(action, StartTransfer):
                self.transfers.append(action)
            elif isinstance(action, StopTransfer):
                self.stopped.add(action.key)
            elif isinstance(action, SendTokens):
                self._take(action)
        return actions

    def _take(self, action: SendTokens) -> None:
        batch = action.batch
        rows = zip(
            batch.stream_ids, batch.indices, batch.token_ids, batch.finish_reasons, strict=True
        )
        for stream_id, index, token, reason in rows:
            stream = self.tokens.setdefault(stream_id, {})
            assert index not in stream, "a token comes once"
            stream[index] = token
            if reason is not None:
                self.ends.setdefault(stream_id, []).append(reason.value)
        for failure in batch.failures:
            self.ends.setdefault(failure.stream_id, []).append(failure.finish_reason.value)

    def run_pass(self) -> bool:
        if not self.passes:
            return False
        forward_pass = self.passes.popleft()
        self.post(self.model.run(forward_pass))
        return True

    def run_all(self, limit: int = 10_000) -> None:
        while self.run_pass():
            limit -= 1
            assert limit > 0, "the worker never comes to rest"


def transfer(
    source: WorkerHarness,
    target: WorkerHarness,
    *,
    fails: bool = False,
    after_offer: Callable[[], object] = lambda: None,
) -> bool:
    """Perform the source's next transfer, up to what both sides tell; whether KV is there.

    Of a move in rounds it is the next part. It ``fails`` on its way, once it has been accepted.
    """
    start = source.transfers.popleft()
    key, model, output = start.request.key, source.model, start.request.output_token_ids
    if key in source.stopped:  # its blocks may be another's by now
        break_off(source, target, start)
        return False
    is_host = bool(start.host_blocks)
    tokens = model.read(start.host_blocks or start.blocks, from_host=is_host)
    question: KvOffered | KvContinued
    if start.first_token:
        new = output[source.num_told[key] :]
        question = KvContinued(key, start.num_computed_tokens, new)
    else:
        shape, handoff = (1, 2, len(tokens) // 4, 1, 1), start.handoff
        header = KvHeader(
            *(start.request, handoff.target_unit, start.num_computed_tokens, 0, 1, "int", shape),
            fencing_token=handoff.fencing_token,
        )
        question = KvOffered(header)
    source.num_told[key] = len(output)
    kinds = AcceptKv | AcknowledgeKv | RefuseKv
    answer = next(each for each in target.post(question) if isinstance(each, kinds))
    after_offer()
    if fails or isinstance(answer, RefuseKv):
        break_off(source, target, start)
        return False
    if isinstance(answer, AcceptKv):
        _copy(start, tokens, answer, target.model)
    if start.more:
        source.post(KvSent(key))
        return True
    if isinstance(answer, AcceptKv):
        target.post(KvArrived(key))
    handoff = start.handoff
    source.post(TransferEnded(key, handoff.target_worker_id, handoff.target_unit, True))
    return True


def _copy(start: StartTransfer, tokens: bytes, answer: AcceptKv, model: PagedFake) -> None:
    first, stop, is_host = start.first_token, start.num_computed_tokens, bool(answer.host_blocks)
    assert b"\xff" * 4 not in tokens[4 * first : 4 * stop], "what is sent has been computed"
    rest = tokens[4 * (first - first % model.block_size) :]
    model.write(answer.host_blocks or answer.blocks, rest, first, stop, to_host=is_host)


def break_off(source: WorkerHarness, target: WorkerHarness, start: StartTransfer) -> None:
    """A move ends without its last part, as both sides are told."""
    handoff = start.handoff
    source.stopped.discard(handoff.key)
    target.post(KvAborted(handoff.key))
    source.post(TransferEnded(handoff.key, handoff.target_worker_id, handoff.target_unit, False))
