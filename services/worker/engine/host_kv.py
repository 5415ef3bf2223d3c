"""KV in host memory, and its way there and back.

What leaves its blocks is copied aside before the pass may write there, and travels on beside it;
what comes back is there before the pass begins. A GPU does so on streams of its own, a CPU at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from headway.messages import ForwardPass, Swap
from services.worker.engine.kv import DTYPES, KvPool, KvStore, refuse_what_does_not_fit
from services.worker.engine.layout import PassFailure

STAGED_BYTES = 2**28
"""Of device memory, for KV on its way."""


class HostKv(KvStore):
    """Blocks in host memory, pinned for a GPU: ``blocks`` is (blocks, planes, tokens, heads, size).

    Raises HeadwayError (RESOURCE_EXHAUSTED) where the machine has too little memory.
    """

    def __init__(self, pool: KvPool, num_blocks: int) -> None:
        super().__init__(pool.shape, num_blocks, pool.block_size)
        num_tokens = num_blocks * pool.block_size
        name = "host_kv_gib: host memory for KV"
        refuse_what_does_not_fit(name, pool.shape, num_tokens, torch.device("cpu"))
        num_planes, _, *token = pool.blocks.shape
        self.blocks = torch.empty(
            (num_blocks, num_planes, *token),
            dtype=DTYPES[pool.shape.dtype],
            pin_memory=pool.blocks.is_cuda,
        )

    def read_planes(self, first: int, stop: int, slots: torch.Tensor) -> torch.Tensor:
        """See ``KvStore``."""
        size = self.block_size
        return (
            self.blocks[:, first:stop][slots // size, :, slots % size].transpose(0, 1).contiguous()
        )

    def write_plane(self, plane: int, slots: torch.Tensor, data: bytearray) -> None:
        """See ``KvStore``."""
        size = self.block_size
        self.blocks[slots // size, plane, slots % size] = self._plane_of(data, len(slots))


@dataclass(slots=True)
class SwapTime:
    """Seconds that a pass's swaps took, known when it has ended."""

    seconds: float = 0.0


class KvSwapper:
    """Carries out the swaps of passes; one thread's, as the passes are."""

    def __init__(self, pool: KvPool, host: HostKv | None) -> None:
        self._pool = pool
        self._host = host
        self._device = pool.blocks.device
        self._streams: tuple[torch.cuda.Stream, torch.cuda.Stream] | None = None
        if host is not None and pool.blocks.is_cuda:
            self._streams = _stream(self._device), _stream(self._device)

    @contextmanager
    def around(self, forward_pass: ForwardPass) -> Iterator[SwapTime]:
        """The pass's swaps, begun before what is done inside and complete after it.

        PassFailure blames all requests that it swaps where one cannot be.
        """
        spent = SwapTime()
        swaps = (*forward_pass.swapped_out, *forward_pass.swapped_in)
        try:
            if not swaps:
                yield spent
                return
            try:
                finish = self._begin(forward_pass)
            except RuntimeError as error:
                message = f"KV could not be swapped: {error}"
                raise PassFailure([swap.key for swap in swaps], message) from error
            self._pool.writable.set()
            try:
                yield spent
            finally:
                spent.seconds = finish()
        finally:
            self._pool.writable.set()

    def _begin(self, forward_pass: ForwardPass) -> Callable[[], float]:
        """Start; what is returned waits for the end and says how long it took, seconds."""
        if self._streams is not None:
            return self._begin_on_streams(forward_pass, *self._streams)
        began_at = time.perf_counter()
        self._save(forward_pass.swapped_out, lambda: None)
        self._restore(forward_pass.swapped_in)
        seconds = time.perf_counter() - began_at
        return lambda: seconds

    def _begin_on_streams(
        self, forward_pass: ForwardPass, out: torch.cuda.Stream, back: torch.cuda.Stream
    ) -> Callable[[], float]:
        compute = torch.cuda.current_stream(self._device)
        marks = [_event() for _ in range(4)]
        aside = _event()
        out.wait_stream(compute)
        with torch.cuda.stream(out):
            marks[0].record(out)
            self._save(forward_pass.swapped_out, lambda: aside.record(out))
            marks[1].record(out)
        back.wait_stream(compute)
        if forward_pass.swapped_out:
            back.wait_event(aside)  # the blocks may be those that something has just left
            compute.wait_event(aside)
        with torch.cuda.stream(back):
            marks[2].record(back)
            self._restore(forward_pass.swapped_in)
            marks[3].record(back)
        compute.wait_stream(back)

        def finish() -> float:
            out.synchronize()
            back.synchronize()
            return float(marks[0].elapsed_time(marks[1]) + marks[2].elapsed_time(marks[3])) / 1e3

        return finish

    @torch.inference_mode()
    def _save(self, swaps: Iterable[Swap], aside: Callable[[], None]) -> None:
        """To host memory; ``aside`` is called once the blocks may be written to."""
        pieces = list(self._pieces(swaps))
        for n, (blocks, host_blocks) in enumerate(pieces):
            staged = self._pool.blocks.transpose(0, 1).index_select(0, self._ids(blocks))
            if n == len(pieces) - 1:
                aside()
            for first, start, stop in _runs(host_blocks):
                target = self._hosted.blocks[first : first + stop - start]
                target.copy_(staged[start:stop], non_blocking=True)

    @torch.inference_mode()
    def _restore(self, swaps: Iterable[Swap]) -> None:
        """From host memory."""
        for blocks, host_blocks in self._pieces(swaps):
            shape = (len(blocks), *self._hosted.blocks.shape[1:])
            staged = torch.empty(shape, dtype=self._hosted.blocks.dtype, device=self._device)
            for first, start, stop in _runs(host_blocks):
                source = self._hosted.blocks[first : first + stop - start]
                staged[start:stop].copy_(source, non_blocking=True)
            self._pool.blocks.index_copy_(1, self._ids(blocks), staged.transpose(0, 1))

    @property
    def _hosted(self) -> HostKv:
        if self._host is None:
            raise RuntimeError("this worker has no host memory for KV")
        return self._host

    def _pieces(self, swaps: Iterable[Swap]) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """Blocks and host blocks, as many at a time as may be staged."""
        blocks = [block for swap in swaps for block in swap.blocks]
        host_blocks = [block for swap in swaps for block in swap.host_blocks]
        block_bytes = self._pool.block_size * self._pool.shape.bytes_per_token
        step = max(1, STAGED_BYTES // block_bytes)
        for start in range(0, len(blocks), step):
            yield blocks[start : start + step], host_blocks[start : start + step]

    def _ids(self, blocks: Sequence[int]) -> torch.Tensor:
        return torch.tensor(blocks, device=self._device)


def _runs(blocks: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(first block, start, stop): places ``start … stop - 1`` hold consecutive blocks."""
    start = 0
    for n in range(1, len(blocks) + 1):
        if n == len(blocks) or blocks[n] != blocks[n - 1] + 1:
            yield blocks[start], start, n
            start = n


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it so


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it so
