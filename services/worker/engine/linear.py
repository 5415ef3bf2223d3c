"""Matrix products with weights in the layout that the device multiplies fastest."""

from __future__ import annotations

import torch
from torch.nn.functional import linear

ROWS_PACKED_FOR = 32
"""oneDNN lays weights out for this many rows; measured, that is near the best for 1 to 512."""

MIN_PACKED_WEIGHTS = 2**18
"""A float32 matrix with fewer is multiplied faster as it is: packed calls cost more each."""


class Linear:
    """``x · Wᵀ + b`` for rows ``x`` (rows, inputs): (rows, outputs).

    On a CPU with oneDNN large matrices, and all in bfloat16, are packed once.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.num_outputs = weight.shape[0]
        self.bias = bias
        self._is_packed = _packs(weight)
        if self._is_packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS_PACKED_FOR)
        self._weight = weight

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """The product of ``rows``."""
        return self._product(rows, self.bias)

    def without_bias(self, rows: torch.Tensor) -> torch.Tensor:
        """``x · Wᵀ``."""
        return self._product(rows, None)

    def _product(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self._is_packed:
            product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
                rows, self._weight, bias, "none", [], ""
            )
            return product
        return linear(rows, self._weight, bias)

    def added_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """``residual`` (rows, outputs) and the product of ``rows``."""
        if self._is_packed:
            total: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(
                rows, residual, self._weight, self.bias, "add"
            )
            return total
        if self.bias is None:
            return torch.addmm(residual, rows, self._weight.t())
        return residual + linear(rows, self._weight, self.bias)


def _packs(weight: torch.Tensor) -> bool:
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    if weight.dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype is torch.float32 and weight.numel() >= MIN_PACKED_WEIGHTS
