"""Products in which every output is one sum in the order of the inputs, on any processor."""

from __future__ import annotations

import ctypes
from functools import cache

import torch

from services.worker.engine.cpu.build import library

BLOCK = 64
"""Outputs that lie side by side; see ``fixed.h``."""

_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_int64
_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class FixedOrder:
    """One matrix (outputs, inputs) whose product with a row is the same whatever rows are beside.

    ``is_wide``: products are float32, whatever the matrix's dtype is.
    """

    def __init__(self, weight: torch.Tensor, is_wide: bool) -> None:
        self._num_outputs, self._num_inputs = weight.shape
        self._dtype = weight.dtype
        self._to = torch.float32 if is_wide else weight.dtype
        self._weights = _by_blocks(weight)
        self._function = getattr(
            _library(), f"fixed_product_{_NAMES[weight.dtype]}_{_NAMES[self._to]}"
        )

    @staticmethod
    def of(weight: torch.Tensor, is_wide: bool = False) -> FixedOrder | None:
        """Return None on a GPU, for float16 and without a compiler."""
        is_served = weight.device.type == "cpu" and weight.dtype in _NAMES
        return FixedOrder(weight, is_wide) if is_served and library() is not None else None

    def takes(self, rows: torch.Tensor) -> bool:
        """Return whether ``rows`` (rows, inputs) can be multiplied: all that there are."""
        return rows.dtype is self._dtype

    def product(
        self, rows: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return ``rows · Wᵀ`` plus ``bias`` (outputs,) and ``residual`` (rows, outputs)."""
        rows = rows.contiguous()
        output = rows.new_empty(len(rows), self._num_outputs, dtype=self._to)
        self._function(
            *(rows.data_ptr(), self._weights.data_ptr(), _address(bias), _address(residual)),
            *(output.data_ptr(), len(rows), self._num_inputs, self._num_outputs),
            torch.get_num_threads(),
        )
        return output


def _by_blocks(weight: torch.Tensor) -> torch.Tensor:
    """Return a matrix (outputs, inputs) as (blocks, inputs, ``BLOCK``), filled up with zeros."""
    missing = -len(weight) % BLOCK
    padded = torch.nn.functional.pad(weight, (0, 0, 0, missing))
    return padded.view(-1, BLOCK, weight.shape[1]).transpose(1, 2).contiguous()


def _address(tensor: torch.Tensor | None) -> int | None:
    assert tensor is None or tensor.is_contiguous(), "kernels need contiguous memory"
    return None if tensor is None else tensor.data_ptr()


@cache
def _library() -> ctypes.CDLL:
    loaded = library()
    assert loaded is not None, "FixedOrder.of has found it"
    for name in ("float32_float32", "bfloat16_float32", "bfloat16_bfloat16"):
        function = getattr(loaded, f"fixed_product_{name}")
        function.argtypes, function.restype = [_POINTER] * 5 + [_COUNT] * 4, None
    return loaded
