"""The attention kernels alone: their errors against float32, and their speed by tile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from bench.card.cases import Case, Shape
from bench.card.device import device_seconds, num_processors, recorded_seconds
from services.worker.engine.gpu.attend import Tile, padded_size
from services.worker.engine.gpu.decode import decode_attention, decode_tile
from services.worker.engine.gpu.plan import plan_decode
from services.worker.engine.gpu.prefill import prefill_attention, prefill_tile

BLOCK_SIZE = 64
SWEPT_BLOCKS = {"decode": (64,), "prefill": (64, 128)}
DECODE_TILES = ((32, 4, 3), (32, 2, 4), (64, 4, 2), (64, 4, 4), (64, 2, 3), (64, 8, 3), (128, 4, 2))
PREFILL_TILES = (
    *((128, 64, 8, 2), (128, 64, 8, 4), (128, 64, 4, 3), (64, 64, 4, 3)),
    *((128, 128, 8, 2), (128, 128, 8, 3), (256, 64, 8, 3)),
)
"""Rows (a prompt's alone), context tokens a step, warps, pipeline stages."""
CHECKED: tuple[Case, ...] = (
    Case(5, 700),
    Case(2, 4100),
    Case(num_rows=300),
    Case(num_rows=190, start=1000),
)
FEW_CHECKED: tuple[Case, ...] = (Case(3, 70), Case(num_rows=19, start=40))


@dataclass(frozen=True, slots=True)
class Layer:
    """Random KV of one layer for a case of decodes, or of one prompt, and its queries."""

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    tables: torch.Tensor
    lengths: torch.Tensor
    block_size: int

    @staticmethod
    def of(
        shape: Shape,
        case: Case,
        device: torch.device,
        dtype: torch.dtype,
        block_size: int = BLOCK_SIZE,
    ) -> Layer:
        """Make a random layer, with the blocks in a random order."""
        num_requests = case.num_decodes or 1
        length = case.context or case.start + case.num_rows
        columns = -(-length // block_size)
        order = torch.randperm(num_requests * columns, device=device).int()
        slots = (num_requests * columns * block_size, shape.num_kv_heads, shape.head_dim)
        rows = (case.num_tokens, shape.num_heads, shape.head_dim)
        return Layer(
            torch.randn(rows, device=device, dtype=dtype),
            torch.randn(slots, device=device, dtype=dtype),
            torch.randn(slots, device=device, dtype=dtype),
            order.view(num_requests, columns),
            torch.full((num_requests,), length, dtype=torch.int32, device=device),
            block_size,
        )

    def attend(self, processors: int, tile: Tile | None = None) -> torch.Tensor:
        """Attend with the kernel."""
        (rows, heads, size), kv_heads = self.query.shape, self.keys.shape[1]
        pool, settings = self.pool, self.settings
        if rows == len(self.lengths):
            plan = plan_decode(self.lengths, heads, kv_heads, size, processors)
            return decode_attention(
                self.query,
                *pool,
                self.lengths,
                plan,
                **settings,
                tile=tile,
            )
        return prefill_attention(
            self.query, *pool, self.firsts, self.lengths, **settings, tile=tile
        )

    @property
    def pool(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return keys, values and tables."""
        return self.keys, self.values, self.tables

    @property
    def firsts(self) -> torch.Tensor:
        """Return where the one prompt's rows begin and end."""
        return torch.tensor([0, len(self.query)], dtype=torch.int32, device=self.query.device)

    @property
    def settings(self) -> dict[str, Any]:
        """Return what every kernel is told beside its tensors."""
        return {"block_size": self.block_size, "scale": self.query.shape[2] ** -0.5}

    def expected(self) -> torch.Tensor:
        """Attend with torch in float32, request by request."""
        per_request = len(self.query) // len(self.lengths)
        parts = []
        for n, length in enumerate(self.lengths.tolist()):
            where = torch.arange(length, device=self.query.device)
            size = self.block_size
            slots = self.tables[n, where // size] * size + where % size
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
    shape: Shape,
    device: torch.device,
    dtypes: tuple[str, ...],
    cases: tuple[Case, ...] = CHECKED,
    *,
    block_size: int = BLOCK_SIZE,
) -> Iterator[dict[str, object]]:
    """Return relative errors, by the norm."""
    for dtype in dtypes:
        for case in cases:
            layer = Layer.of(shape, case, device, getattr(torch, dtype), block_size)
            error = relative_error(layer.attend(4), layer.expected())
            case_fields = {"kind": case.kind, "dtype": dtype, "block_size": block_size}
            yield {**case_fields, **asdict(case), "error": error}


def relative_error(output: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the norm of the difference over the expected norm."""
    return float((output.float() - expected).norm() / expected.norm())


def sweep(
    shape: Shape, case: Case, device: torch.device, dtype: torch.dtype
) -> Iterator[dict[str, object]]:
    """Time a case's attention in one layer, with its own tile and with others."""
    processors = num_processors(device)
    for block_size in SWEPT_BLOCKS[case.kind]:
        layer = Layer.of(shape, case, device, dtype, block_size)
        for tile in _tiles(shape, case, dtype.itemsize):
            time = recorded_seconds if case.num_decodes else device_seconds
            seconds = _try(partial(time, partial(layer.attend, processors, tile), device, 20))
            said = {"tile": asdict(tile), "block_size": block_size}
            yield {**said, **rates(shape, case, dtype.itemsize, seconds)}


def rates(shape: Shape, case: Case, itemsize: int, seconds: float | None) -> dict[str, object]:
    """Return the bytes/s and operations/s of one layer's attention; None for no seconds."""
    pairs = case.num_decodes * case.context
    pairs += case.num_rows * case.start + case.num_rows * (case.num_rows + 1) // 2
    tokens = case.num_decodes * case.context + case.start + case.num_rows
    kv_bytes = 2 * tokens * shape.num_kv_heads * shape.head_dim * itemsize
    flops = 4 * pairs * shape.num_heads * shape.head_dim
    return {
        **asdict(case),
        "seconds": seconds,
        "bytes_per_s": None if seconds is None else kv_bytes / seconds,
        "flops_per_s": None if seconds is None else flops / seconds,
    }


def _try(time: Callable[[], float]) -> float | None:
    """Return the seconds of a tile; None if the card has no room for it."""
    try:
        return time()
    except Exception as error:
        if type(error).__name__ not in ("OutOfResources", "CompilationError"):
            raise
        return None


def _tiles(shape: Shape, case: Case, itemsize: int) -> tuple[Tile, ...]:
    """Yield tiles, the case's own first."""
    padded, grouped = padded_size(shape.head_dim), shape.num_heads // shape.num_kv_heads
    if case.num_decodes:
        own = decode_tile(grouped, padded, itemsize)
        return (own, *(Tile(own.rows, *each) for each in DECODE_TILES))
    return (prefill_tile(padded, itemsize), *(Tile(*each) for each in PREFILL_TILES))
