"""Decode passes recorded once per batch size and replayed: no launch waits for Python.

A pass of ``n`` rows is replayed in the least recorded size that holds it. The rows beyond ``n``
are requests of length 0 at slot -1: the kernels read nothing for them and store nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import torch

PADDING_SLOT = -1
SMALL = 8
"""Every batch size up to this one is recorded: small passes are the shortest."""
STEP, STEPS_END = 8, 256
WIDE_STEP = 64

Run = Callable[[], torch.Tensor]
Record = Callable[[Run], Run]


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """One token of each request.

    ``token_ids``, ``positions`` and ``slots`` (rows,) int64; ``lengths`` (rows,) int32, the
    contexts with this token; ``tables`` (rows, blocks) int32.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    lengths: torch.Tensor
    tables: torch.Tensor


def bucket_sizes(limit: int) -> tuple[int, ...]:
    """Return the recorded batch sizes up to ``limit``, and ``limit`` itself.

    They are all up to 8, then every eighth up to 256, then every 64th.
    """
    assert limit > 0, "a limit of at least one row"
    sizes = {*range(1, SMALL), *range(STEP, STEPS_END, STEP), limit}
    sizes.update(range(STEPS_END, limit, WIDE_STEP))
    return tuple(sorted(size for size in sizes if size <= limit))


def bucket_of(num_rows: int, sizes: tuple[int, ...]) -> int | None:
    """Return the least of the rising ``sizes`` that holds ``num_rows``; None if none does."""
    place = bisect_left(sizes, num_rows)
    return sizes[place] if num_rows > 0 and place < len(sizes) else None


class StaticBuffers:
    """The input of the recorded passes: one set of tensors; each size reads its first rows."""

    def __init__(self, limit: int, num_columns: int, device: torch.device) -> None:
        """Allocate for ``limit`` rows; ``num_columns`` blocks hold the longest context."""
        self._num_filled = 0
        self._all = DecodeBatch(
            token_ids=torch.zeros(limit, dtype=torch.int64, device=device),
            positions=torch.zeros(limit, dtype=torch.int64, device=device),
            slots=torch.full((limit,), PADDING_SLOT, dtype=torch.int64, device=device),
            lengths=torch.zeros(limit, dtype=torch.int32, device=device),
            tables=torch.zeros(limit, num_columns, dtype=torch.int32, device=device),
        )

    def front(self, num_rows: int) -> DecodeBatch:
        """Return views of the first rows."""
        whole = self._all
        return DecodeBatch(
            token_ids=whole.token_ids[:num_rows],
            positions=whole.positions[:num_rows],
            slots=whole.slots[:num_rows],
            lengths=whole.lengths[:num_rows],
            tables=whole.tables[:num_rows],
        )

    def fill(self, batch: DecodeBatch) -> None:
        """Take a pass's rows; those of the last pass beyond them become padding."""
        num_rows, whole = len(batch.token_ids), self._all
        own = self.front(num_rows)
        own.token_ids.copy_(batch.token_ids)
        own.positions.copy_(batch.positions)
        own.slots.copy_(batch.slots)
        own.lengths.copy_(batch.lengths)
        # Entries right of a request's blocks are never read.
        own.tables[:, : batch.tables.shape[1]].copy_(batch.tables)
        if num_rows < self._num_filled:
            stale = slice(num_rows, self._num_filled)
            whole.token_ids[stale].zero_()
            whole.positions[stale].zero_()
            whole.slots[stale].fill_(PADDING_SLOT)
            whole.lengths[stale].zero_()
        self._num_filled = num_rows


class DecodeGraphs:
    """``forward`` recorded for each batch size of ``sizes``, which rise.

    ``forward`` takes a batch in static memory and returns hidden states (rows, width); its
    launches must depend on the batch's shapes alone. ``record`` makes of a run its replay:
    :class:`CudaRecorder`, or the run itself where there is nothing to record with.
    """

    def __init__(
        self,
        forward: Callable[[DecodeBatch], torch.Tensor],
        *,
        sizes: tuple[int, ...],
        num_columns: int,
        device: torch.device,
        record: Record,
    ) -> None:
        self.sizes = sizes
        self._forward = forward
        self._record = record
        self._buffers = StaticBuffers(sizes[-1], num_columns, device)
        self._replays: dict[int, Run] = {}

    def record_all(self) -> None:
        """Record every size, the largest first: the others then fit into its memory."""
        for size in reversed(self.sizes):
            self._replay(size)

    def holds(self, num_rows: int) -> bool:
        """Return whether a pass of ``num_rows`` rows can be replayed."""
        return bucket_of(num_rows, self.sizes) is not None

    def run(self, batch: DecodeBatch) -> torch.Tensor:
        """Return the hidden states of the batch's rows, valid until the next run."""
        num_rows = len(batch.token_ids)
        size = bucket_of(num_rows, self.sizes)
        assert size is not None, f"{num_rows} rows, recorded are up to {self.sizes[-1]}"
        self._buffers.fill(batch)
        return self._replay(size)()[:num_rows]

    def _replay(self, size: int) -> Run:
        if size not in self._replays:
            batch = self._buffers.front(size)
            self._replays[size] = self._record(lambda: self._forward(batch))
        return self._replays[size]


class CudaRecorder:
    """Records a run as a CUDA graph; all its graphs share one pool of memory.

    They may share it, because no two of them ever run at once.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Run) -> Run:
        """Run once, so that everything is compiled and chosen, then record."""
        with torch.cuda.device(self._device):
            stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                run()
            torch.cuda.current_stream().wait_stream(stream)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Other threads may copy KV meanwhile: only this thread's calls are recorded.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                output = run()

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay
