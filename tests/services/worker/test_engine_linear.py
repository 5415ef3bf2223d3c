"""Packed products are the plain ones."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear, silu

from services.worker.engine.cpu.linear import MIN_PACKED_WEIGHTS, GatedLinear, Linear

DTYPES = [torch.float32, torch.bfloat16]
NUM_INPUTS = 768
NUM_OUTPUTS = 384  # with these a float32 matrix is packed, too
ROWS = [1, 3, 32, 70]


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).mul_(0.1).to(dtype)


def close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> bool:
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    return torch.allclose(found.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", ROWS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_and_its_sum(dtype: torch.dtype, num_rows: int, has_bias: bool) -> None:
    assert NUM_INPUTS * NUM_OUTPUTS >= MIN_PACKED_WEIGHTS
    weight = random(NUM_OUTPUTS, NUM_INPUTS, dtype=dtype)
    bias = random(NUM_OUTPUTS, dtype=dtype) if has_bias else None
    rows, residual = (
        random(num_rows, NUM_INPUTS, dtype=dtype),
        random(num_rows, NUM_OUTPUTS, dtype=dtype),
    )
    product = Linear(weight, bias)
    plain = linear(rows.double(), weight.double())
    expected = plain if bias is None else plain + bias.double()
    assert close(product(rows), expected, dtype)
    assert close(product.without_bias(rows), plain, dtype)
    assert close(product.added_to(residual, rows), expected + residual.double(), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", ROWS)
@pytest.mark.parametrize("width", [16, NUM_OUTPUTS])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_gated_product(dtype: torch.dtype, num_rows: int, width: int, has_bias: bool) -> None:
    gate, up = (random(width, NUM_INPUTS + n, dtype=dtype)[:, :NUM_INPUTS] for n in range(2))
    bias = random(width, dtype=dtype) if has_bias else None
    rows = random(num_rows, NUM_INPUTS, dtype=dtype)
    gates, ups = (linear(rows.double(), each.double()) for each in (gate, up))
    if bias is not None:
        gates, ups = gates + bias.double(), ups + bias.double()
    found = GatedLinear((gate, bias), (up, bias))(rows)
    assert close(found, silu(gates) * ups, dtype)
