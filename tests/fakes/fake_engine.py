"""An engine without torch: its KV is the context's tokens, so that wrong paging shows."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from threading import Event
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.cluster import Adapter
from headway.engine import Buffer, EngineInfo, IncomingKv, KvMemory, PassFailure
from headway.errors import invalid
from headway.forward_pass import PENDING, ForwardPass, HiddenStates, PassItem, PassResult, Sampled
from headway.request import StreamKey
from services.worker.config import WorkerConfig
from tests.fakes.paged import next_token

LAYERS, HEADS, SIZE, WIDTH = 6, 3, 32, 192  # as the small model has them
TOKEN_BYTES = LAYERS * 2 * HEADS * SIZE * 4


class FakeEngine:
    """A ``headway.engine.Backend`` whose tokens follow from the whole context, greedily.

    A token's KV has its id as the first number, and zeros.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        num_host_blocks: int = 0,
        max_model_len: int = 1024,
        adapters: Iterable[str] = (),
    ) -> None:
        self.info = EngineInfo(
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            block_size=block_size,
            kv_bytes_per_token=TOKEN_BYTES,
            max_model_len=max_model_len,
            eos_token_ids=(),
            dtype="float32",
            kernels="fake",
            adapters=tuple(Adapter(name, "fake") for name in sorted(adapters)),
        )
        self._kv = np.full((num_blocks, block_size), -1.0, np.float32)
        self._host = np.full((num_host_blocks, block_size), -1.0, np.float32)
        self._drawn: dict[StreamKey, int] = {}  # by the last pass
        self._writable = Event()
        self._writable.set()

    def expect(self, forward_pass: ForwardPass) -> None:
        if forward_pass.swapped_out:
            self._writable.clear()

    def run(self, forward_pass: ForwardPass) -> PassResult:
        time.sleep(0.003)  # as a small model's: a cancel comes before the end
        for out in (*forward_pass.swapped_out, *forward_pass.saved):
            self._host[list(out.host_blocks)] = self._kv[list(out.blocks)]
        self._writable.set()
        for back in forward_pass.swapped_in:
            self._kv[list(back.blocks)] = self._host[list(back.host_blocks)]
        drawn, self._drawn = self._drawn, {}
        items = [_filled_in(item, drawn) for item in forward_pass.items]
        for item in items:
            self._check(item)
        sampled = [
            Sampled(item.key, next_token(context))
            for item, context in [(item, self._compute(item)) for item in items]
            if item.sample
        ]
        self._drawn = {each.key: each.token_id for each in sampled}
        asked = [items[place] for place in forward_pass.hidden]
        hidden = HiddenStates(
            tuple(item.key for item in asked),
            np.array(
                [[item.start + len(item.token_ids) - 1] * WIDTH for item in asked], np.float16
            ),
        )
        return PassResult(
            forward_pass.pass_id, 1e-3, tuple(sampled), hidden if asked else None, 0.0
        )

    def _check(self, item: PassItem) -> None:
        stop, held = item.start + len(item.token_ids), len(item.block_table) * self.info.block_size
        name = f"request {item.key.gateway_id}/{item.key.stream_id}"
        wrong = [block for block in item.block_table if not 0 <= block < self.info.num_blocks]
        if stop > self.info.max_model_len:
            raise PassFailure([item.key], f"{name}: it reaches {stop} tokens: over the limit")
        if stop > held:
            raise PassFailure([item.key], f"{name}: its block table holds {held} tokens")
        if wrong:
            raise PassFailure([item.key], f"{name}: {wrong[0]} is not a block id")

    def _compute(self, item: PassItem) -> list[int]:
        """Store the item's tokens; return its context as the blocks hold it."""
        stop = item.start + len(item.token_ids)
        rows, columns = np.divmod(np.arange(stop), self.info.block_size)
        blocks = np.array(item.block_table)[rows]
        self._kv[blocks[item.start :], columns[item.start :]] = item.token_ids
        return [int(token) for token in self._kv[blocks, columns]]

    def kv_shape(self, num_blocks: int) -> tuple[int, ...]:
        return LAYERS, 2, num_blocks * self.info.block_size, HEADS, SIZE

    def read_kv(self, block_ids: Sequence[int], *, from_host: bool = False) -> Iterator[memoryview]:
        store = self._store(from_host)
        _refuse_unknown(block_ids, len(store))
        planes = np.zeros(self.kv_shape(len(block_ids)), np.float32)
        planes[0, 0, :, 0, 0] = store[list(block_ids)].reshape(-1)
        raw = planes.reshape(-1).view(np.uint8).data
        return (raw[start : start + 2**20] for start in range(0, len(raw), 2**20))

    def kv_writer(self, kv: IncomingKv) -> _Writer:
        block_ids, shape, dtype, num_tokens, first_token, to_host = kv
        if dtype != self.info.dtype:
            raise invalid("the KV's dtype", dtype, f"this worker's, {self.info.dtype}")
        if len(shape) != 5 or (*shape[:2], *shape[3:]) != (LAYERS, 2, HEADS, SIZE):
            raise invalid("the KV's shape", tuple(shape), "this worker's")
        room = len(block_ids) * self.info.block_size
        if not first_token <= num_tokens <= min(room, first_token + shape[2]):
            raise invalid("the number of computed tokens", num_tokens, f"at most {room}")
        store = self._store(to_host)
        _refuse_unknown(block_ids, len(store))
        return _Writer(self, store, kv)

    def kv_memory(self, *, is_host: bool) -> KvMemory | None:
        store = self._store(is_host)
        size = store.itemsize * self.info.block_size
        return KvMemory(store.ctypes.data, store.nbytes, 1, 0, size, size) if len(store) else None

    def await_writable(self) -> None:
        self._writable.wait()

    def write(self, store: NDArray[np.float32], blocks: list[int], first: int, tokens: Any) -> None:
        self._writable.wait()
        held = store[blocks].reshape(-1)
        held[first : first + len(tokens)] = tokens
        store[blocks] = held.reshape(len(blocks), -1)

    def _store(self, is_host: bool) -> NDArray[np.float32]:
        return self._host if is_host else self._kv

    def close(self) -> None:
        self._writable.set()


class _Writer:
    def __init__(self, engine: FakeEngine, store: NDArray[np.float32], kv: IncomingKv) -> None:
        self._engine, self._store, self._kv = engine, store, kv
        self._data = bytearray()

    def feed(self, data: Buffer) -> None:
        self._data += data
        self._check(len(self._data) > self._num_bytes)

    def finish(self) -> None:
        self._check(len(self._data) != self._num_bytes)
        kv = self._kv
        planes = np.frombuffer(self._data, np.float32).reshape(tuple(kv.shape))
        tokens = planes[0, 0, : kv.num_tokens - kv.first_token, 0, 0]
        self._engine.write(self._store, list(kv.block_ids), kv.first_token, tokens)

    @property
    def _num_bytes(self) -> int:
        return self._kv.shape[2] * TOKEN_BYTES

    def _check(self, is_wrong: bool) -> None:
        if is_wrong:
            raise invalid("the number of KV bytes", len(self._data), f"{self._num_bytes}")


def load_fake(config: WorkerConfig) -> FakeEngine:
    """In place of ``services.worker.loading.load_backend``."""
    block_bytes = config.tokens_per_block * TOKEN_BYTES
    num_host_blocks = int(config.host_kv_gib * 2**30) // block_bytes
    num_blocks = config.dp * config.num_blocks
    return FakeEngine(num_blocks, config.tokens_per_block, num_host_blocks, 2048, config.lora)


def _filled_in(item: PassItem, drawn: dict[StreamKey, int]) -> PassItem:
    if item.token_ids[0] != PENDING:
        return item
    if item.key not in drawn:
        raise PassFailure([item.key], f"{PENDING} is not a token id")
    return item._replace(token_ids=(drawn[item.key],))


def _refuse_unknown(block_ids: Sequence[int], num_blocks: int) -> None:
    for block in block_ids:
        if not 0 <= block < num_blocks:
            raise invalid("block id", block, f"from 0 to {num_blocks - 1}")
