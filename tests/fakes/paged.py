"""A model for core tests: it reads its context from paged memory, so wrong paging shows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

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
from headway.forward_pass import PENDING, ForwardPass, HiddenStates, PassItem, PassResult, Sampled
from headway.messages import KvHeader
from headway.request import StreamKey

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


class PagedFake:
    """Runs passes of one worker over a dict of (block, offset) -> token id.

    Blocks that are swapped out lose what they held, unless they may be ``shared``.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.shared = False
        self.memory: dict[tuple[int, int], int] = {}
        self.host: dict[int, list[int | None]] = {}  # by host block
        self.drawn: dict[StreamKey, int] = {}  # by the last pass
        self.is_late: Callable[[PassItem], bool] = lambda item: False
        self._late: set[StreamKey] = set()  # in the last pass

    def run(self, forward_pass: ForwardPass) -> PassResult:
        for swap in forward_pass.swapped_out:
            self.write_host(swap.host_blocks, self.read(swap.blocks))
            if not self.shared:
                self.write(swap.blocks, [None] * (len(swap.blocks) * self.block_size))
        for swap in forward_pass.saved:
            self.write_host(swap.host_blocks, self.read(swap.blocks))
        for swap in forward_pass.swapped_in:
            self.write(swap.blocks, self.read_host(swap.host_blocks))
        before = self._late
        self._late = {x.key for x in forward_pass.items if x.sample and self.is_late(x)}
        sampled = tuple(
            Sampled(item.key, token)
            for item in forward_pass.items
            if not (item.key in before and PENDING in item.token_ids)
            if (token := self._compute(item)) is not None and item.key not in self._late
        )
        self.drawn = {each.key: each.token_id for each in sampled}
        hidden = self._hidden([forward_pass.items[place] for place in forward_pass.hidden])
        late = tuple(sorted(self._late))
        return PassResult(forward_pass.pass_id, 0.01, sampled, hidden, late=late)

    def _hidden(self, items: Sequence[PassItem]) -> HiddenStates | None:
        """A state says at which position it was computed."""
        if not items:
            return None
        positions = [[item.start + len(item.token_ids) - 1] for item in items]
        return HiddenStates(tuple(item.key for item in items), np.array(positions, np.float16))

    def _compute(self, item: PassItem) -> int | None:
        size = self.block_size
        for offset, token in enumerate(item.token_ids):
            if token == PENDING:
                token = self.drawn[item.key]
            position = item.start + offset
            self.memory[item.block_table[position // size], position % size] = token
        if not item.sample:
            return None
        stop = item.start + len(item.token_ids)
        context = [self.memory[item.block_table[p // size], p % size] for p in range(stop)]
        return next_token(context)

    def read(self, blocks: Sequence[int]) -> list[int | None]:
        return [self.memory.get((b, o)) for b in blocks for o in range(self.block_size)]

    def read_host(self, blocks: Sequence[int]) -> list[int | None]:
        return [token for block in blocks for token in self.host[block]]

    def write_host(self, blocks: Sequence[int], tokens: Sequence[int | None]) -> None:
        size = self.block_size
        for n, block in enumerate(blocks):
            self.host[block] = list(tokens[n * size : (n + 1) * size])

    def write_at(self, block: int, offset: int, token: int | None) -> None:
        assert token is not None, "what is sent has been computed"
        self.memory[block, offset] = token

    def write(self, blocks: Sequence[int], tokens: Sequence[int | None]) -> None:
        slots = [(b, o) for b in blocks for o in range(self.block_size)]
        for slot, token in zip(slots, tokens, strict=True):
            if token is None:
                self.memory.pop(slot, None)
            else:
                self.memory[slot] = token


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
    tokens = model.read_host(start.host_blocks) if start.host_blocks else model.read(start.blocks)
    question: KvOffered | KvContinued
    if start.first_token:
        new = output[source.num_told[key] :]
        question = KvContinued(key, start.num_computed_tokens, new)
    else:
        shape, handoff = (1, 2, len(tokens), 1, 1), start.handoff
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


def _copy(
    start: StartTransfer, tokens: Sequence[int | None], answer: AcceptKv, model: PagedFake
) -> None:
    size = model.block_size
    for place in range(start.first_token, start.num_computed_tokens):
        if answer.host_blocks:
            block = answer.host_blocks[place // size]
            model.host.setdefault(block, [None] * size)[place % size] = tokens[place]
        else:
            model.write_at(answer.blocks[place // size], place % size, tokens[place])


def break_off(source: WorkerHarness, target: WorkerHarness, start: StartTransfer) -> None:
    """A move ends without its last part, as both sides are told."""
    handoff = start.handoff
    source.stopped.discard(handoff.key)
    target.post(KvAborted(handoff.key))
    source.post(TransferEnded(handoff.key, handoff.target_worker_id, handoff.target_unit, False))
