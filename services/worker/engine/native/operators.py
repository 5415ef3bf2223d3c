"""The kernels of ``layer.cpp`` over tensors: contiguous, on a CPU, all of one dtype.

Their threads are torch's (``torch.set_num_threads``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from services.worker.engine.native.build import library

_POINTER, _COUNT, _FLOAT, _THREADS = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
_ARGUMENTS = {
    "rms_norm": [*[_POINTER] * 3, *[_COUNT] * 2, _FLOAT, _THREADS],
    "silu_mul": [*[_POINTER] * 2, *[_COUNT] * 2, _THREADS],
    "rope_store": [*[_POINTER] * 9, *[_COUNT] * 4, _FLOAT, _THREADS],
    "decode_attention": [*[_POINTER] * 6, *[_COUNT] * 6, _FLOAT, _THREADS],
}
_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class Operators:
    """Of one dtype. Raises RuntimeError where ``serve`` says that there are none."""

    def __init__(self, dtype: torch.dtype) -> None:
        loaded = library() if dtype in _DTYPES else None
        if loaded is None:
            raise RuntimeError(f"no kernels for {dtype} on this machine")
        self._rms_norm = _function(loaded, "rms_norm", dtype)
        self._silu_mul = _function(loaded, "silu_mul", dtype)
        self._rope_store = _function(loaded, "rope_store", dtype)
        self._decode_attention = _function(loaded, "decode_attention", dtype)

    @staticmethod
    def serve(dtype: torch.dtype, device: torch.device) -> bool:
        """Whether there are any: not for float16, nor without a compiler."""
        return device.type == "cpu" and dtype in _DTYPES and library() is not None

    def rms_norm(self, rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """``x / sqrt(mean(x²) + eps) · weight`` for each of ``rows`` (rows, size)."""
        normed = torch.empty_like(rows)
        self._rms_norm(
            *(rows.data_ptr(), weight.data_ptr(), normed.data_ptr()),
            *(*rows.shape, eps, torch.get_num_threads()),
        )
        return normed

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """``silu(gate) · up`` (rows, width) of gates and ups side by side (rows, 2 · width)."""
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        gated = gate_up.new_empty(rows, width)
        self._silu_mul(gate_up.data_ptr(), gated.data_ptr(), rows, width, torch.get_num_threads())
        return gated

    def rope_store(
        self,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        *,
        num_heads: int,
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        eps: float,
    ) -> None:
        """Rotate queries and keys where they are, and store keys and values.

        ``qkv`` (rows, (heads + 2 KV heads) · size) has queries, keys, values in this order.
        ``cos`` and ``sin`` are (positions, size), of which the second halves are read.
        ``positions`` and ``slots`` (rows,) are int64, ``keys`` and ``values`` (slots, KV heads,
        size). ``norms`` are the (size,) weights of an RMSNorm over each query and each key head
        before the rotation.
        """
        _, num_kv_heads, size = keys.shape
        query_norm, key_norm = (each.data_ptr() for each in norms) if norms else (None, None)
        self._rope_store(
            *(qkv.data_ptr(), cos.data_ptr(), sin.data_ptr()),
            *(positions.data_ptr(), slots.data_ptr(), query_norm, key_norm),
            *(keys.data_ptr(), values.data_ptr(), len(qkv), num_heads, num_kv_heads, size),
            *(eps, torch.get_num_threads()),
        )

    def decode_attention(
        self,
        qkv: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        tables: torch.Tensor,
        lengths: torch.Tensor,
        output: torch.Tensor,
        *,
        num_heads: int,
        block_size: int,
        scale: float,
    ) -> None:
        """Attention of the first rows' queries over their contexts, into ``output``'s first rows.

        ``tables`` (requests, blocks) and ``lengths`` (requests,), at least 1 each, are int32; a
        context includes the row's own token, stored before. ``output`` is (rows, heads · size).
        """
        _, num_kv_heads, size = keys.shape
        self._decode_attention(
            *(qkv.data_ptr(), keys.data_ptr(), values.data_ptr(), tables.data_ptr()),
            *(lengths.data_ptr(), output.data_ptr(), *tables.shape),
            *(num_heads, num_kv_heads, size, block_size, scale, torch.get_num_threads()),
        )


def _function(loaded: ctypes.CDLL, name: str, dtype: torch.dtype) -> Callable[..., Any]:
    function = getattr(loaded, f"{name}_{_DTYPES[dtype]}")
    function.argtypes, function.restype = _ARGUMENTS[name], None
    return function  # type: ignore[no-any-return]
