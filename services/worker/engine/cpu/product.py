"""Products with bfloat16 matrices that oneDNN has packed; of few rows, at the speed of memory.

Each output is one sum in one order, whatever the rows beside it.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch

from services.worker.engine.cpu.build import library

MOST_ROWS = 32
"""With more rows a product no longer waits for its weights to be read."""

_TILE = 32
_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_int64
_TOLERANCE = 2.0**-6


class FewRows:
    """One matrix (outputs, inputs) packed by oneDNN, or an MLP's gate and up.

    They are multiplied in oneDNN's layout, on Intel processors with matrix tiles (AMX).
    ``most_rows``: more are left to others, None: none are. ``is_wide``: products are float32.
    """

    def __init__(
        self,
        products: ctypes.CDLL,
        *packed: torch.Tensor,
        most_rows: int | None = MOST_ROWS,
        is_wide: bool = False,
    ) -> None:
        self._most_rows = most_rows
        self._to = torch.float32 if is_wide else torch.bfloat16
        self._products = products
        self._product = (
            products.product_bfloat16_float32 if is_wide else products.product_bfloat16_bfloat16
        )
        self._packed = packed
        self._num_outputs, self._num_inputs = packed[0].shape
        self._weights = [torch.ops.mkldnn.data_ptr(each) for each in packed]

    @staticmethod
    def of(
        *packed: torch.Tensor, most_rows: int | None = MOST_ROWS, is_wide: bool = False
    ) -> FewRows | None:
        """Return None without such a processor, or if oneDNN's layout is not the expected one."""
        shape = packed[0].shape
        if packed[0].dtype is not torch.bfloat16 or shape[0] % _TILE or shape[1] % _TILE:
            return None
        products = _products()
        if products is None or not all(_is_as_expected(products, each) for each in packed):
            return None
        return FewRows(products, *packed, most_rows=most_rows, is_wide=is_wide)

    def takes(self, rows: torch.Tensor) -> bool:
        """Return whether ``rows`` (rows, inputs) are few enough, bfloat16 and contiguous."""
        is_plain = rows.dtype is torch.bfloat16 and rows.is_contiguous()
        return is_plain and 0 < len(rows) <= (self._most_rows or len(rows))

    def product(
        self, rows: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return ``rows · Wᵀ`` plus ``bias`` (outputs,) and ``residual`` (rows, outputs)."""
        output = rows.new_empty(len(rows), self._num_outputs, dtype=self._to)
        self._product(
            *(rows.data_ptr(), self._weights[0], _address(bias), _address(residual)),
            *(output.data_ptr(), len(rows), self._num_inputs, self._num_outputs),
            torch.get_num_threads(),
        )
        return output

    def gated(
        self, rows: torch.Tensor, gate_bias: torch.Tensor | None, up_bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Return ``silu(rows · Gᵀ) · (rows · Uᵀ)``, each product with its bias."""
        output = rows.new_empty(len(rows), self._num_outputs)
        self._products.gated_product_bfloat16(
            *(rows.data_ptr(), self._weights[0], _address(gate_bias)),
            *(self._weights[1], _address(up_bias), output.data_ptr()),
            *(len(rows), self._num_inputs, self._num_outputs, torch.get_num_threads()),
        )
        return output


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


@cache
def _products() -> ctypes.CDLL | None:
    """Return the library, None if this processor or its system does not allow tiles."""
    loaded = library()
    if loaded is None or not loaded.may_multiply_bfloat16():
        return None
    for product in (loaded.product_bfloat16_bfloat16, loaded.product_bfloat16_float32):
        product.argtypes = [_POINTER] * 5 + [_COUNT] * 4
    loaded.gated_product_bfloat16.argtypes = [_POINTER] * 6 + [_COUNT] * 4
    return loaded


def _is_as_expected(products: ctypes.CDLL, packed: torch.Tensor) -> bool:
    """Return whether three random rows give oneDNN's product: its layout is not documented."""
    if torch.ops.mkldnn._nbytes(packed) != 2 * packed.shape.numel():
        return False
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, packed.shape[1], generator=generator).bfloat16()
    operator = torch.ops.mkldnn._linear_pointwise.default
    expected = operator(rows, packed, None, "none", [], "").float()
    product = FewRows(products, packed).product(rows, None).float()
    if not expected.isfinite().all():
        return False
    return bool((product - expected).norm() <= _TOLERANCE * expected.norm())
