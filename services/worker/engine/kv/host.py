"""KV in host memory, and its way there and back.

KV that leaves its blocks is copied aside before the pass may write there, and goes to host memory
while the pass runs. KV comes back while the pass runs, too, or before it if a request in the pass
needs it. Cached KV that is saved stays in its blocks, so it is copied from there while the pass
runs. A GPU does this on streams of its own, a CPU in a thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from headway.engine import KvMemory, PassFailure
from headway.forward_pass import ForwardPass, Swap
from services.worker.engine.kv.pool import DTYPES, KvPool, KvStore, refuse_what_does_not_fit

STAGED_BYTES = 2**28
"""Device memory for KV on its way."""


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

    def memory(self) -> KvMemory:
        """See ``KvStore``."""
        return self._memory(self.blocks, plane_stride=1, block_stride=2 * self.shape.num_layers)

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


_Piece = tuple[torch.Tensor, Sequence[int]]
"""KV of some blocks, and the host blocks it goes to."""


@dataclass(slots=True)
class SwapTime:
    """The seconds that a pass's swaps took, known when the pass has ended."""

    seconds: float = 0.0


class KvSwapper:
    """The swaps of passes; used by the one thread that runs them."""

    def __init__(self, pool: KvPool, host: HostKv | None) -> None:
        self._pool = pool
        self._host = host
        self._device = pool.blocks.device
        self._streams: tuple[torch.cuda.Stream, torch.cuda.Stream] | None = None
        self._copier = ThreadPoolExecutor(1, "kv-copy")
        if host is not None and pool.blocks.is_cuda:
            self._streams = _stream(self._device), _stream(self._device)

    @contextmanager
    def around(self, forward_pass: ForwardPass) -> Iterator[SwapTime]:
        """Begin the pass's swaps before the body, and complete them after it.

        A swap that fails raises PassFailure with all requests that the pass swaps.
        """
        spent = SwapTime()
        swaps = (*forward_pass.swapped_out, *forward_pass.swapped_in, *forward_pass.saved)
        try:
            if not swaps:
                yield spent
                return
            with _blaming(swaps):
                finish = self._begin(forward_pass)
            self._pool.writable.set()
            try:
                yield spent
            finally:
                with _blaming(swaps):
                    spent.seconds = finish()
        finally:
            self._pool.writable.set()

    def _begin(self, forward_pass: ForwardPass) -> Callable[[], float]:
        """Start; the returned function waits for the end and returns the seconds it took."""
        if self._streams is not None:
            return self._begin_on_streams(forward_pass, *self._streams)
        began_at = time.perf_counter()
        pieces = list(self._staged(forward_pass.swapped_out))
        aside = time.perf_counter() - began_at
        copying = self._copier.submit(self._copy, pieces, forward_pass.swapped_in)
        if _waits(forward_pass):
            copying.result()
        saving = self._copier.submit(self._copy, (), (), forward_pass.saved)
        return lambda: aside + copying.result() + saving.result()

    def _copy(
        self, pieces: Sequence[_Piece], swapped_in: Sequence[Swap], saved: Sequence[Swap] = ()
    ) -> float:
        """Do the part that runs during a pass; return its seconds."""
        began_at = time.perf_counter()
        for staged, host_blocks in pieces:
            self._put(staged, host_blocks)
        self._restore(swapped_in)
        self._save(saved, _go_on)
        return time.perf_counter() - began_at

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
            self._save(forward_pass.saved, _go_on)
            marks[1].record(out)
        back.wait_stream(compute)
        if forward_pass.swapped_out:
            back.wait_event(aside)  # the blocks may have just been swapped out
            compute.wait_event(aside)
        with torch.cuda.stream(back):
            marks[2].record(back)
            self._restore(forward_pass.swapped_in)
            marks[3].record(back)
        if _waits(forward_pass):
            compute.wait_stream(back)

        def finish() -> float:
            out.synchronize()
            back.synchronize()
            return float(marks[0].elapsed_time(marks[1]) + marks[2].elapsed_time(marks[3])) / 1e3

        return finish

    @torch.inference_mode()
    def _save(self, swaps: Iterable[Swap], aside: Callable[[], None]) -> None:
        for staged, host_blocks in self._staged(swaps):
            aside()
            self._put(staged, host_blocks)

    @torch.inference_mode()
    def _staged(self, swaps: Iterable[Swap]) -> Iterator[_Piece]:
        """Copy KV aside; yield the last piece, with all earlier pieces in host memory already."""
        pieces = list(self._pieces(swaps))
        for n, (blocks, host_blocks) in enumerate(pieces):
            staged = self._pool.blocks.transpose(0, 1).index_select(0, self._ids(blocks))
            if n == len(pieces) - 1:
                yield staged, host_blocks
            else:
                self._put(staged, host_blocks)

    @torch.inference_mode()
    def _put(self, staged: torch.Tensor, host_blocks: Sequence[int]) -> None:
        for first, start, stop in _runs(host_blocks):
            target = self._hosted.blocks[first : first + stop - start]
            target.copy_(staged[start:stop], non_blocking=True)

    @torch.inference_mode()
    def _restore(self, swaps: Iterable[Swap]) -> None:
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
        """Yield blocks and host blocks, as many at a time as may be staged."""
        blocks = [block for swap in swaps for block in swap.blocks]
        host_blocks = [block for swap in swaps for block in swap.host_blocks]
        block_bytes = self._pool.block_size * self._pool.shape.bytes_per_token
        step = max(1, STAGED_BYTES // block_bytes)
        for start in range(0, len(blocks), step):
            yield blocks[start : start + step], host_blocks[start : start + step]

    def _ids(self, blocks: Sequence[int]) -> torch.Tensor:
        return torch.tensor(blocks, device=self._device)


def _go_on() -> None:
    """Do nothing: nobody waits for blocks that keep what they hold."""


def _waits(forward_pass: ForwardPass) -> bool:
    """Return whether a request in the pass needs KV that comes back."""
    returning = {swap.key for swap in forward_pass.swapped_in}
    return bool(returning) and any(item.key in returning for item in forward_pass.items)


@contextmanager
def _blaming(swaps: Sequence[Swap]) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        message = f"KV could not be swapped: {error}"
        raise PassFailure([swap.key for swap in swaps], message) from error


def _runs(blocks: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (first block, start, stop): places ``start … stop - 1`` hold consecutive blocks."""
    start = 0
    for n in range(1, len(blocks) + 1):
        if n == len(blocks) or blocks[n] != blocks[n - 1] + 1:
            yield blocks[start], start, n
            start = n


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it so


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it so
