"""Compiled products of few rows are those of the plain matrix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import linear, silu

from services.worker.engine.cpu.linear import GatedLinear, Linear, packed
from services.worker.engine.cpu.product import MOST_ROWS, FewRows
from tests.fakes.kernel_reference import HAS_COMPILER, close, normal

if not HAS_COMPILER or "amx_bf16" not in Path("/proc/cpuinfo").read_text():
    pytest.skip("compiled products need a processor with matrix tiles", allow_module_level=True)

sizes = st.integers(1, 9).map(lambda count: 32 * count)
many = settings(max_examples=40, deadline=None, derandomize=True)


def random(*shape: int) -> torch.Tensor:
    return normal(*shape, dtype=torch.bfloat16).cpu()


def weights(num_outputs: int, num_inputs: int) -> torch.Tensor:
    return random(num_outputs, num_inputs).div(num_inputs**0.5)


@many
@given(
    num_rows=st.integers(1, MOST_ROWS),
    num_inputs=sizes,
    num_outputs=sizes,
    has_bias=st.booleans(),
    num_threads=st.sampled_from([1, 3]),
)
def test_a_product_its_sum_and_a_gated_one(
    num_rows: int, num_inputs: int, num_outputs: int, has_bias: bool, num_threads: int
) -> None:
    torch.manual_seed(num_rows)
    first, second = (weights(num_outputs, num_inputs) for _ in range(2))
    biases = [random(num_outputs) if has_bias else None for _ in range(2)]
    rows, residual = random(num_rows, num_inputs), random(num_rows, num_outputs)
    plain = [
        linear(rows.double(), weight.double(), None if bias is None else bias.double())
        for weight, bias in zip((first, second), biases, strict=True)
    ]
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        one, both = FewRows.of(packed(first)), FewRows.of(packed(first), packed(second))
        assert one is not None
        assert both is not None
        assert close(one.product(rows, biases[0]), plain[0])
        assert close(one.product(rows, biases[0], residual), plain[0] + residual.double())
        assert close(both.gated(rows, *biases), silu(plain[0]) * plain[1])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("num_rows", [1, MOST_ROWS, MOST_ROWS + 1, 200])
def test_layers_take_them_where_rows_are_few(
    num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    for name in ("product", "gated"):
        monkeypatch.setattr(FewRows, name, noted(name, getattr(FewRows, name), taken))
    weight, up = weights(64, 96), weights(64, 96)
    rows, residual = random(num_rows, 96), random(num_rows, 64)
    product, gated = Linear(weight), GatedLinear((weight, None), (up, None))
    product.take_few_rows()
    gated.take_few_rows()
    taken.clear()  # they have tried theirs
    plain = linear(rows.double(), weight.double())
    assert close(product(rows), plain)
    assert close(product.added_to(residual, rows), plain + residual.double())
    assert close(gated(rows), silu(plain) * linear(rows.double(), up.double()))
    assert taken == (["product", "product", "gated"] if num_rows <= MOST_ROWS else [])


def noted(name: str, method: Callable[..., Any], taken: list[str]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        taken.append(name)
        return method(*args)

    return call


@pytest.mark.parametrize("shape", [(64, 40), (40, 64)])
def test_a_shape_that_tiles_do_not_divide_is_left_to_onednn(shape: tuple[int, int]) -> None:
    assert FewRows.of(packed(weights(*shape))) is None


def test_another_layout_than_expected_is_left_to_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, other = packed(weights(64, 64)), packed(weights(64, 64))
    assert FewRows.of(matrix) is not None
    elsewhere = torch.ops.mkldnn.data_ptr(other)
    monkeypatch.setattr(torch.ops.mkldnn, "data_ptr", lambda _: elsewhere)
    assert FewRows.of(matrix) is None
