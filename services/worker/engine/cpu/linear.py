"""Matrix products with weights in the layout that the device multiplies fastest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch.nn.functional import linear, silu

from services.worker.engine.cpu.fixed import FixedOrder
from services.worker.engine.cpu.product import FewRows

ROWS_PACKED_FOR = 32
"""oneDNN packs weights for this many rows; measured, this is near the best for 1 to 512."""

MIN_PACKED_WEIGHTS = 2**18
"""A smaller float32 matrix is faster unpacked, because a packed call costs more."""


Weights = tuple[torch.Tensor, torch.Tensor | None]
"""A matrix (outputs, inputs) and its bias (outputs,)."""


class Addition(Protocol):
    """A sum for the products of a matrix, on some rows of a pass."""

    def __bool__(self) -> bool:
        """Return whether it changes a row of the pass under way."""

    def __call__(self, rows: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
        """Return ``product``, changed in place; ``rows`` are all rows of the pass."""


class Adaptable(Protocol):
    """A matrix whose products something is added to."""

    addition: Addition | None


class Linear:
    """``x · Wᵀ + b`` for rows ``x`` (rows, inputs): (rows, outputs).

    On a CPU with oneDNN large matrices, and all in bfloat16, are packed once.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.num_outputs = weight.shape[0]
        self.addition: Addition | None = None
        self.bias = bias
        self._is_packed = _packs(weight)
        self._weight = packed(weight) if self._is_packed else weight
        if self._is_packed:
            self._packed_product, self._packed_sum = _operators()
        self._few: FewRows | FixedOrder | None = None

    def take_few_rows(self) -> None:
        """Use compiled kernels from now on, if there are any for this matrix."""
        self._few = FewRows.of(self._weight) if self._is_packed else None

    def take_all_rows(self, *, is_wide: bool = False) -> None:
        """Use compiled kernels from now on, for any number of rows.

        A row's product is then the same whatever rows are beside it. ``is_wide``: it is float32.
        The matrix has to be on a CPU that compiles kernels, in float32 or bfloat16.
        """
        if self._is_packed:
            self._few = FewRows.of(self._weight, most_rows=None, is_wide=is_wide)
        if self._few is None:
            self._few = FixedOrder.of(self.plain(), is_wide)
            self._weight = torch.empty(0)
        assert self._few is not None, "who asks has looked for kernels"

    def plain(self) -> torch.Tensor:
        """Return the matrix (outputs, inputs) as torch lays it out."""
        return self._weight.to_dense() if self._is_packed else self._weight

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the product of ``rows`` with the bias."""
        product = self._product(rows, self.bias)
        return self.addition(rows, product) if self.addition else product

    def without_bias(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the product of ``rows`` without the bias."""
        return self._product(rows, None)

    def _product(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self._few is not None and self._few.takes(rows):
            return self._few.product(rows, bias)
        if self._is_packed:
            product: torch.Tensor = self._packed_product(rows, self._weight, bias, "none", [], "")
            return product
        return linear(rows, self._weight, bias)

    def added_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return ``residual`` (rows, outputs) plus the product of ``rows``."""
        total = self._added_to(residual, rows)
        return self.addition(rows, total) if self.addition else total

    def _added_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        if self._few is not None and self._few.takes(rows):
            return self._few.product(rows, self.bias, residual)
        if self._is_packed:
            total: torch.Tensor = self._packed_sum(rows, residual, self._weight, self.bias, "add")
            return total
        if self.bias is None:
            return torch.addmm(residual, rows, self._weight.t())
        return residual + linear(rows, self._weight, self.bias)


class GatedLinear:
    """``silu(x · Gᵀ) · (x · Uᵀ)`` for rows ``x``: an MLP's gate and up.

    Packed they are two products that end with the gate and with the multiplication, else one.
    """

    def __init__(self, gate: Weights, up: Weights) -> None:
        self._few: FewRows | None = None
        self.num_outputs = gate[0].shape[0]
        self.addition: Addition | None = None
        self.is_packed = _packs(gate[0])
        if self.is_packed:
            self._gate, self._up = packed(gate[0]), packed(up[0])
            self._packed_product, self._packed_gating = _operators()
            self._biases = (gate[1], up[1])
        else:
            self._joined = Linear(torch.cat([gate[0], up[0]]), _joined_bias(gate[1], up[1]))

    def take_few_rows(self) -> None:
        """Use compiled kernels from now on, if there are any for these matrices."""
        self._few = FewRows.of(self._gate, self._up) if self.is_packed else None

    def take_all_rows(self) -> None:
        """Use compiled kernels from now on, for any number of rows; see ``Linear``."""
        if self.is_packed:
            self._few = FewRows.of(self._gate, self._up, most_rows=None)
        if self._few is not None:
            return
        if self.is_packed:
            self.is_packed = False
            weight = torch.cat([self._gate.to_dense(), self._up.to_dense()])
            self._joined = Linear(weight, _joined_bias(*self._biases))
            self._gate = self._up = torch.empty(0)
        self._joined.take_all_rows()

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the gated rows (rows, width) of ``rows`` (rows, inputs)."""
        if not self.is_packed or self.addition:
            gate, up = self.joined(rows).chunk(2, -1)
            return silu(gate).mul_(up)
        gate_bias, up_bias = self._biases
        if self._few is not None and self._few.takes(rows):
            return self._few.gated(rows, gate_bias, up_bias)
        gate = self._packed_product(rows, self._gate, gate_bias, "swish", [], "")
        gated: torch.Tensor = self._packed_gating(rows, gate, self._up, up_bias, "mul")
        return gated

    def joined(self, rows: torch.Tensor) -> torch.Tensor:
        """Return gates and ups side by side (rows, 2 * width), not yet multiplied."""
        if self.is_packed:
            pairs = zip((self._gate, self._up), self._biases, strict=True)
            both = [self._packed_product(rows, each, bias, "none", [], "") for each, bias in pairs]
            joined = torch.cat(both, -1)
        else:
            joined = self._joined(rows)
        return self.addition(rows, joined) if self.addition else joined


def _joined_bias(*biases: torch.Tensor | None) -> torch.Tensor | None:
    given = [bias for bias in biases if bias is not None]
    return torch.cat(given) if given else None


def _operators() -> tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]:
    """Look up the product and the product with a combining end, once for many calls."""
    operator = torch.ops.mkldnn._linear_pointwise
    return operator.default, operator.binary


def packed(weight: torch.Tensor) -> torch.Tensor:
    """Return the same matrix in oneDNN's layout."""
    laid_out: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(
        weight.contiguous(), ROWS_PACKED_FOR
    )
    return laid_out


def _packs(weight: torch.Tensor) -> bool:
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    if weight.dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype is torch.float32 and weight.numel() >= MIN_PACKED_WEIGHTS
