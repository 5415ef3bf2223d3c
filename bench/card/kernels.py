"""The attention kernels alone: their errors against float32, and their speed by tile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch.nn.functional import scaled_dot_product_attention

from bench.card.cases import BLOCK_SIZE, Case, Shape
from bench.card.device import device_seconds
from services.worker.engine.gpu.attend import Tile, padded_size
from services.worker.engine.gpu.decode import decode_attention, decode_tile
from services.worker.engine.gpu.plan import plan_decode
from services.worker.engine.gpu.prefill import prefill_attention, prefill_tile

CHECKED = (Case(5, 700), Case(2, 4100), Case(num_rows=300), Case(num_rows=190, start=1000))


@dataclass(frozen=True, slots=True)
class Layer:
    """Random KV of one layer for a case of decodes, or of one prompt, and its queries."""

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    tables: torch.Tensor
    lengths: torch.Tensor

    @staticmethod
    def of(shape: Shape, case: Case, device: torch.device, dtype: torch.dtype) -> Layer:
        """Make a random layer, with the blocks in a random order."""
        num_requests = case.num_decodes or 1
        length = case.context or case.start + case.num_rows
        columns = -(-length // BLOCK_SIZE)
        order = torch.randperm(num_requests * columns, device=device).int()
        slots = (num_requests * columns * BLOCK_SIZE, shape.num_kv_heads, shape.head_dim)
        rows = (case.num_tokens, shape.num_heads, shape.head_dim)
        return Layer(
            torch.randn(rows, device=device, dtype=dtype),
            torch.randn(slots, device=device, dtype=dtype),
            torch.randn(slots, device=device, dtype=dtype),
            order.view(num_requests, columns),
            torch.full((num_requests,), length, dtype=torch.int32, device=device),
        )

    def attend(self, processors: int, tile: Tile | None = None) -> torch.Tensor:
        """Attend with the kernel."""
        (rows, heads, size), kv_heads = self.query.shape, self.keys.shape[1]
        pool, scale = (self.keys, self.values, self.tables), size**-0.5
        if rows == len(self.lengths):
            plan = plan_decode(self.lengths, heads, kv_heads, size, processors)
            return decode_attention(
                self.query,
                *pool,
                self.lengths,
                plan,
                block_size=BLOCK_SIZE,
                scale=scale,
                tile=tile,
            )
        firsts = torch.tensor([0, rows], dtype=torch.int32, device=self.query.device)
        return prefill_attention(
            self.query, *pool, firsts, self.lengths, block_size=BLOCK_SIZE, scale=scale, tile=tile
        )

    def expected(self) -> torch.Tensor:
        """Attend with torch in float32, request by request."""
        per_request = len(self.query) // len(self.lengths)
        parts = []
        for n, length in enumerate(self.lengths.tolist()):
            where = torch.arange(length, device=self.query.device)
            slots = self.tables[n, where // BLOCK_SIZE] * BLOCK_SIZE + where % BLOCK_SIZE
            rows = self.query[n * per_request : (n + 1) * per_request]
            keys, values = (plane[slots].transpose(0, 1).float() for plane in _planes(self))
            mask = where <= where[length - per_request :, None]
            output = scaled_dot_product_attention(
                rows.transpose(0, 1).float(), keys, values, attn_mask=mask, enable_gqa=True
            )
            parts.append(output.transpose(0, 1))
        return torch.cat(parts)


def _planes(layer: Layer) -> tuple[torch.Tensor, torch.Tensor]:
    return layer.keys, layer.values


def check(
    shape: Shape, device: torch.device, dtypes: tuple[str, ...], cases: tuple[Case, ...] = CHECKED
) -> Iterator[dict[str, object]]:
    """Return relative errors, by the norm."""
    for dtype in dtypes:
        for case in cases:
            layer = Layer.of(shape, case, device, getattr(torch, dtype))
            expected = layer.expected()
            error = (layer.attend(4).float() - expected).norm() / expected.norm()
            yield {"kind": case.kind, "dtype": dtype, **asdict(case), "error": float(error)}


def sweep(
    shape: Shape, cases: tuple[Case, ...], device: torch.device, dtype: torch.dtype, processors: int
) -> Iterator[dict[str, object]]:
    """Time each case's attention in one layer, with its own tile and with others."""
    for case in cases:
        layer = Layer.of(shape, case, device, dtype)
        for tile in _tiles(shape, case, dtype.itemsize):
            found = _try(partial(layer.attend, processors, tile), device)
            pairs = case.num_decodes * case.context
            pairs += case.num_rows * case.start + case.num_rows * (case.num_rows + 1) // 2
            tokens = case.num_decodes * case.context + case.start + case.num_rows
            kv_bytes = 2 * tokens * shape.num_kv_heads * shape.head_dim * dtype.itemsize
            flops = 4 * pairs * shape.num_heads * shape.head_dim
            yield {
                **asdict(case),
                "tile": asdict(tile),
                "seconds": found,
                "bytes_per_s": None if found is None else kv_bytes / found,
                "flops_per_s": None if found is None else flops / found,
            }


def _try(run: Callable[[], object], device: torch.device) -> float | None:
    """Return the seconds of a tile; None if the card has no room for it."""
    try:
        return device_seconds(run, device, 20)
    except Exception as error:
        if type(error).__name__ not in ("OutOfResources", "CompilationError"):
            raise
        return None


def _tiles(shape: Shape, case: Case, itemsize: int) -> tuple[Tile, ...]:
    """Yield tiles, the case's own first."""
    padded, grouped = padded_size(shape.head_dim), shape.num_heads // shape.num_kv_heads
    if case.num_decodes:
        own = decode_tile(grouped, padded, itemsize)
        others = [(32, 4, 3), (64, 4, 5), (128, 4, 3), (128, 8, 3), (64, 2, 3)]
    else:
        own = prefill_tile(padded, itemsize)
        others = [(128, 8, 2), (128, 8, 3), (64, 8, 4), (64, 4, 3)]
    return (own, *(Tile(own.rows, *each) for each in others))
