"""The kernels of ``kernels.cpp`` over tensors: contiguous, on a CPU, all of one dtype.

Their threads are torch's (``torch.set_num_threads``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from services.worker.engine.attention import Contexts
from services.worker.engine.cpu.build import library

_POINTER, _COUNT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_ARGUMENTS = {
    "rms_norm": [_POINTER, _POINTER, _POINTER, _COUNT, _COUNT, _FLOAT, _COUNT],
    "silu_mul": [_POINTER, _POINTER, _COUNT, _COUNT, _COUNT],
    "greatest": [_POINTER, _POINTER, _COUNT, _COUNT, _COUNT],
    "store_and_attend": [_POINTER] * 5,
}
_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class _Structure(ctypes.Structure):
    """A structure of ``structures.h`` that keeps its tensors alive."""

    def __init__(self, *fields: torch.Tensor | int | float | None) -> None:
        self.held = fields
        tensors = [each for each in fields if isinstance(each, torch.Tensor)]
        assert all(each.is_contiguous() for each in tensors), "kernels need contiguous memory"
        addresses = [each.data_ptr() if isinstance(each, torch.Tensor) else each for each in fields]
        super().__init__(*addresses)
        self.address = ctypes.addressof(self)


class AttentionShape(_Structure):
    """Attention's sizes, the scale of scores and the norms' epsilon."""

    _fields_ = (
        *((name, _COUNT) for name in ("num_heads", "num_kv_heads", "size", "block_size")),
        *((name, _FLOAT) for name in ("scale", "eps")),
    )


class AttentionLayer(_Structure):
    """Weights (size,) of an RMSNorm over each query and each key head or None, and the layer's
    keys and values (slots, KV heads, size).
    """

    _fields_ = tuple((name, _POINTER) for name in ("query_norm", "key_norm", "keys", "values"))


class AttentionRows(_Structure):
    """A pass: ``cos`` and ``sin`` (positions, size), of which the second halves are read; int64
    ``positions`` and ``slots`` (rows,); int32 ``tables`` (decodes, blocks) and ``lengths``
    (decodes,), at least 1 each, of the first rows, or None. ``parts_are_fixed``: a long context
    is attended to in parts that depend on its own length alone.
    """

    _fields_ = (
        *((name, _POINTER) for name in ("cos", "sin", "positions", "slots", "tables", "lengths")),
        *((name, _COUNT) for name in ("num_rows", "num_decodes", "num_columns", "num_threads")),
        ("parts_are_fixed", _COUNT),
    )

    @staticmethod
    def of(
        cos: torch.Tensor,
        sin: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        contexts: Contexts | None,
        *,
        parts_are_fixed: bool = False,
    ) -> AttentionRows:
        """Describe a pass; ``contexts`` are those of the decodes alone."""
        threads = torch.get_num_threads()
        if contexts is None:
            return AttentionRows(
                cos, sin, positions, slots, None, None, len(positions), 0, 0, threads, 0
            )
        tables, lengths = contexts.tables, contexts.lengths
        counts = (len(positions), *tables.shape, threads, int(parts_are_fixed))
        return AttentionRows(cos, sin, positions, slots, tables, lengths, *counts)


class Operators:
    """The kernels of one dtype; see ``operators_for``."""

    def __init__(self, loaded: ctypes.CDLL, dtype: torch.dtype) -> None:
        self._rms_norm = _function(loaded, "rms_norm", dtype)
        self._silu_mul = _function(loaded, "silu_mul", dtype)
        self._greatest = _function(loaded, "greatest", dtype)
        self._store_and_attend = _function(loaded, "store_and_attend", dtype)

    def rms_norm(self, rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Return ``x / sqrt(mean(x²) + eps) · weight`` for each of ``rows`` (rows, size)."""
        normed = torch.empty_like(rows)
        self._rms_norm(
            *(rows.data_ptr(), weight.data_ptr(), normed.data_ptr()),
            *(*rows.shape, eps, torch.get_num_threads()),
        )
        return normed

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return ``silu(gate) · up`` (rows, width) of gates and ups (rows, 2 · width)."""
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        gated = gate_up.new_empty(rows, width)
        self._silu_mul(gate_up.data_ptr(), gated.data_ptr(), rows, width, torch.get_num_threads())
        return gated

    def greatest(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the greatest of each row (rows, size) and its place, the first of equals.

        A NaN is the greatest.
        """
        places = torch.empty(len(rows), dtype=torch.int64)
        self._greatest(rows.data_ptr(), places.data_ptr(), *rows.shape, torch.get_num_threads())
        return rows.gather(-1, places[:, None])[:, 0], places

    def store_and_attend(
        self,
        shape: AttentionShape,
        layer: AttentionLayer,
        rows: AttentionRows,
        qkv: torch.Tensor,
        output: torch.Tensor,
    ) -> None:
        """Normalise and rotate queries and keys in place, store keys and values, and attend.

        ``qkv`` (rows, (heads + 2 KV heads) · size) has queries, keys, values in this order. Only
        the rows with tables attend, into ``output`` (rows, heads · size); a context includes the
        row's own token.
        """
        self._store_and_attend(
            shape.address, layer.address, rows.address, qkv.data_ptr(), output.data_ptr()
        )


def greatest(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the sampler's ``greatest`` with a compiled kernel."""
    compiled = operators_for(logits.dtype, logits.device)
    assert compiled is not None, "this model's decoder has none"
    return compiled.greatest(logits.contiguous())


def operators_for(dtype: torch.dtype, device: torch.device) -> Operators | None:
    """Return a dtype's operators; None on a GPU, for float16 and without a compiler."""
    loaded = library() if device.type == "cpu" and dtype in _DTYPES else None
    return None if loaded is None else _made(loaded, dtype)


@cache
def _made(loaded: ctypes.CDLL, dtype: torch.dtype) -> Operators:
    return Operators(loaded, dtype)


def _function(loaded: ctypes.CDLL, name: str, dtype: torch.dtype) -> Callable[..., Any]:
    function = getattr(loaded, f"{name}_{_DTYPES[dtype]}")
    function.argtypes, function.restype = _ARGUMENTS[name], None
    return function  # type: ignore[no-any-return]
