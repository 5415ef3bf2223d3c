"""The paged KV pool's tensor, and its bytes on the wire.

The wire's layout is (layers, 2, tokens, KV heads, head size) in C order, keys before values,
little-endian. Tokens are contiguous in it, so two workers' block sizes may differ.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Event

import numpy as np
import torch

from headway.blocks import blocks_for
from headway.engine import Buffer, IncomingKv, KvMemory
from headway.errors import Code, HeadwayError, invalid
from services.worker.engine.kv.memory import available_bytes

MAX_PIECE_BYTES = 2**20
MAX_PADDING_TOKENS = 4096
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class KvShape:
    """The shape of one token's keys and values; ``dtype`` is a key of ``DTYPES``."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str

    @property
    def plane_bytes_per_token(self) -> int:
        """Return the bytes of one token's keys, or values, in one layer."""
        return self.num_kv_heads * self.head_dim * DTYPES[self.dtype].itemsize

    @property
    def bytes_per_token(self) -> int:
        """Return the bytes of one token's keys and values in all layers."""
        return 2 * self.num_layers * self.plane_bytes_per_token


class KvStore(ABC):
    """Blocks of KV: slot ``block * block_size + offset`` holds one token.

    The memory is not cleared: a slot is read only after the token it holds was written.
    """

    def __init__(self, shape: KvShape, num_blocks: int, block_size: int) -> None:
        self.shape = shape
        self.num_blocks = num_blocks
        self.block_size = block_size

    def wire_shape(self, num_blocks: int) -> tuple[int, int, int, int, int]:
        """Return the wire's shape of ``num_blocks`` blocks."""
        shape = self.shape
        tokens = num_blocks * self.block_size
        return shape.num_layers, 2, tokens, shape.num_kv_heads, shape.head_dim

    def read(self, block_ids: Sequence[int]) -> Iterator[memoryview]:
        """Yield the blocks' KV in the wire's layout, in pieces of at most 1 MiB."""
        return self._pieces(self.slots(block_ids, len(block_ids) * self.block_size))

    def _pieces(self, slots: torch.Tensor) -> Iterator[memoryview]:
        plane_bytes = len(slots) * self.shape.plane_bytes_per_token
        step = max(1, MAX_PIECE_BYTES // max(1, plane_bytes))
        num_planes = 2 * self.shape.num_layers
        for first in range(0, num_planes, step):
            planes = self.read_planes(first, min(first + step, num_planes), slots)
            raw = planes.view(torch.uint8).flatten().numpy().data
            for start in range(0, len(raw), MAX_PIECE_BYTES):
                yield raw[start : start + MAX_PIECE_BYTES]

    def slots(self, block_ids: Sequence[int], num_tokens: int) -> torch.Tensor:
        """Return the slots of the blocks' first ``num_tokens`` tokens, int64, on the CPU."""
        blocks = np.fromiter(block_ids, np.int64, len(block_ids))
        if len(blocks) and not 0 <= blocks.min() <= blocks.max() < self.num_blocks:
            wrong = next(b for b in block_ids if not 0 <= b < self.num_blocks)
            raise invalid("block id", wrong, f"from 0 to {self.num_blocks - 1}")
        slots = blocks[:, None] * self.block_size + np.arange(self.block_size)
        return torch.from_numpy(slots.reshape(-1)[:num_tokens])

    def memory(self) -> KvMemory | None:
        """Return where its blocks are; None where they are not one piece of memory."""
        return None

    def _memory(self, tensor: torch.Tensor, plane_stride: int, block_stride: int) -> KvMemory:
        """Return that of a tensor; the strides are in blocks."""
        block_bytes = self.block_size * self.shape.plane_bytes_per_token
        return KvMemory(
            tensor.data_ptr(),
            tensor.nbytes,
            2 * self.shape.num_layers,
            plane_stride * block_bytes,
            block_stride * block_bytes,
            block_bytes,
            (tensor.device.index or 0) if tensor.is_cuda else None,
        )

    @abstractmethod
    def read_planes(self, first: int, stop: int, slots: torch.Tensor) -> torch.Tensor:
        """Return keys (even planes) and values (odd) of the slots: contiguous, on the CPU."""

    @abstractmethod
    def write_plane(self, plane: int, slots: torch.Tensor, data: bytearray) -> None:
        """Write keys (even planes) or values of a layer; ``data`` may be longer than the slots."""

    def _plane_of(self, data: bytearray, num_slots: int) -> torch.Tensor:
        tensor = torch.frombuffer(data, dtype=DTYPES[self.shape.dtype])
        return tensor.view(-1, self.shape.num_kv_heads, self.shape.head_dim)[:num_slots]


class KvPool(KvStore):
    """All KV blocks of a worker, on its device.

    While ``writable`` is not set, a pass still has to save blocks that already belong to others:
    KV from other workers waits. Raises HeadwayError (RESOURCE_EXHAUSTED) if the device has too
    little memory.
    """

    def __init__(
        self, shape: KvShape, num_blocks: int, block_size: int, device: torch.device
    ) -> None:
        super().__init__(shape, num_blocks, block_size)
        refuse_what_does_not_fit("a KV pool", shape, num_blocks * block_size, device)
        self.writable = Event()
        self.writable.set()
        size = (shape.num_layers, 2, num_blocks * block_size, shape.num_kv_heads, shape.head_dim)
        tensor = torch.empty(size, dtype=DTYPES[shape.dtype], device=device)
        # Views made once: (slots, KV heads, head size) per layer, and all planes in wire order.
        self.keys = tuple(layer[0] for layer in tensor)
        self.values = tuple(layer[1] for layer in tensor)
        self._planes = tensor.flatten(0, 1)
        self.blocks = self._planes.view(-1, num_blocks, block_size, *self._planes.shape[2:])

    def memory(self) -> KvMemory:
        """See ``KvStore``."""
        return self._memory(self._planes, plane_stride=self.num_blocks, block_stride=1)

    def read_planes(self, first: int, stop: int, slots: torch.Tensor) -> torch.Tensor:
        """See ``KvStore``."""
        planes = self._planes[first:stop]
        return planes.index_select(1, slots.to(planes.device)).cpu()

    def write_plane(self, plane: int, slots: torch.Tensor, data: bytearray) -> None:
        """See ``KvStore``."""
        self.writable.wait()
        device = self._planes.device
        values = self._plane_of(data, len(slots)).to(device)
        self._planes[plane].index_copy_(0, slots.to(device), values)


class KvWriter:
    """A sink for one request's KV, which comes in pieces of any size.

    It takes tokens ``first_token … num_tokens - 1``; the rest of the offered ``shape[2]`` tokens
    is padding of the source's last block. Raises HeadwayError (INVALID_ARGUMENT) for KV that this
    store cannot hold, for too many bytes, and, in ``finish``, for too few.
    """

    def __init__(self, pool: KvStore, kv: IncomingKv) -> None:
        block_ids, shape, dtype, num_tokens, first_token, _ = kv
        least = 0 if first_token else 1  # the last part may bring the end alone
        _refuse_a_foreign_kv(pool, tuple(shape), dtype, num_tokens - first_token, least)
        if blocks_for(num_tokens, pool.block_size) > len(block_ids):
            room = len(block_ids) * pool.block_size
            raise invalid("the number of computed tokens", num_tokens, f"at most {room}")
        self._pool = pool
        self._slots = pool.slots(block_ids, num_tokens)[first_token:]
        plane_bytes = shape[2] * pool.shape.plane_bytes_per_token
        self._num_bytes = 2 * pool.shape.num_layers * plane_bytes
        self._received = 0
        self._plane = bytearray(plane_bytes)

    def feed(self, data: Buffer) -> None:
        """Take the next bytes; write each plane once it is complete."""
        if self._received + len(data) > self._num_bytes:
            got = self._received + len(data)
            raise invalid("the number of KV bytes", got, f"{self._num_bytes}")
        left = memoryview(data)
        while left:
            plane, offset = divmod(self._received, len(self._plane))
            piece = left[: len(self._plane) - offset]
            self._plane[offset : offset + len(piece)] = piece
            self._received += len(piece)
            left = left[len(piece) :]
            if offset + len(piece) == len(self._plane):
                self._pool.write_plane(plane, self._slots, self._plane)

    def finish(self) -> None:
        """Check that all bytes have come."""
        if self._received != self._num_bytes:
            raise invalid("the number of KV bytes", self._received, f"{self._num_bytes}")


def _refuse_a_foreign_kv(
    pool: KvStore, shape: tuple[int, ...], dtype: str, num_tokens: int, least: int
) -> None:
    own = pool.shape
    if dtype != own.dtype:
        raise invalid("the KV's dtype", dtype, f"this worker's, {own.dtype}")
    expected = (own.num_layers, 2, "tokens", own.num_kv_heads, own.head_dim)
    if len(shape) != 5 or shape != (*expected[:2], shape[2], *expected[3:]):
        limit = f"this worker's, ({', '.join(map(str, expected))})"
        raise invalid("the KV's shape", shape, limit)
    if not least <= num_tokens <= shape[2] <= num_tokens + MAX_PADDING_TOKENS:
        limit = f"from {least} to the {shape[2]} of the KV's shape, of which at most "
        limit += f"{MAX_PADDING_TOKENS} may be padding"
        raise invalid("the number of computed tokens", num_tokens, limit)


def refuse_what_does_not_fit(
    name: str, shape: KvShape, num_tokens: int, device: torch.device
) -> None:
    """Raise HeadwayError for a store that does not fit its device."""
    if num_tokens < 1:
        raise invalid("the KV pool's size in tokens", num_tokens, "at least 1")
    needed, free = num_tokens * shape.bytes_per_token, available_bytes(device)
    if free is not None and needed > free:
        raise HeadwayError(
            Code.RESOURCE_EXHAUSTED,
            f"{name} of {num_tokens} tokens takes {needed / 2**30:.2f} GiB, "
            f"{device} has {free / 2**30:.2f} GiB free: ask for fewer blocks",
        )
