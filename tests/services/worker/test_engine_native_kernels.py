"""The compiled kernels against float64, with one thread and with several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.engine.attention import Contexts
from services.worker.engine.cpu.operators import (
    AttentionLayer,
    AttentionRows,
    AttentionShape,
    Operators,
    operators_for,
)
from tests.fakes.kernel_reference import (
    HAS_COMPILER,
    Pool,
    close,
    head_sizes,
    normal,
    normed,
    rotated,
    seeds,
)

if not HAS_COMPILER:
    pytest.skip("compiled kernels need a C++ compiler", allow_module_level=True)

EPS = 1e-5
dtypes = st.sampled_from([torch.float32, torch.bfloat16])
threads = st.sampled_from([1, 3])
many = settings(max_examples=60, deadline=None, derandomize=True)


@contextmanager
def num_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def operators(dtype: torch.dtype) -> Operators:
    found = operators_for(dtype, torch.device("cpu"))
    assert found is not None
    return found


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return normal(*shape, dtype=dtype).cpu()


def angles(size: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of 50 positions, as the decoder keeps them."""
    turns = torch.rand(50, size // 2) * 6
    cos = torch.cat([turns.cos(), turns.cos()], -1)
    sin = torch.cat([-turns.sin(), turns.sin()], -1)
    return cos.to(dtype), sin.to(dtype)


@many
@given(
    lengths=st.lists(st.integers(1, 1500), min_size=1, max_size=5),
    num_others=st.integers(0, 2),
    num_kv_heads=st.integers(1, 3),
    grouped=st.sampled_from([1, 3, 7, 20]),
    size=head_sizes,
    block_size=st.sampled_from([1, 5, 16]),
    count=threads,
    dtype=dtypes,
    seed=seeds,
)
def test_decode_rows_attend_to_their_whole_contexts(
    lengths: list[int],
    num_others: int,
    num_kv_heads: int,
    grouped: int,
    size: int,
    block_size: int,
    count: int,
    dtype: torch.dtype,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    pool = Pool.of(lengths, num_kv_heads, size, block_size, dtype).on("cpu")
    num_heads, num_rows = num_kv_heads * grouped, len(lengths)
    own = [pool.slots(n) for n in range(num_rows)]
    free = sorted(set(range(len(pool.keys))) - set(torch.cat(own).tolist()))
    slots = torch.tensor([int(each[-1]) for each in own] + free[:num_others])
    qkv = random(len(slots), (num_heads + 2 * num_kv_heads) * size, dtype=dtype)
    output = torch.full((len(qkv), num_heads * size), 7.0, dtype=dtype)
    contexts = Contexts(num_rows, pool.tables, pool.lengths, None)
    positions = torch.randint(50, slots.shape)
    with num_threads(count):
        operators(dtype).store_and_attend(
            AttentionShape(num_heads, num_kv_heads, size, block_size, size**-0.5, EPS),
            AttentionLayer(None, None, pool.keys, pool.values),
            AttentionRows.of(*angles(size, dtype), positions, slots, contexts),
            qkv,
            output,
        )
    query = qkv.view(len(qkv), -1, size)[:num_rows, :num_heads]
    expected = [pool.attention(query[n : n + 1], n, size**-0.5) for n in range(num_rows)]
    assert close(output[:num_rows].view(num_rows, num_heads, size), torch.cat(expected))
    assert bool((output[num_rows:] == 7).all())


@many
@given(
    rows=st.integers(1, 40),
    num_kv_heads=st.integers(1, 3),
    grouped=st.integers(1, 5),
    size=head_sizes,
    with_norms=st.booleans(),
    count=threads,
    dtype=dtypes,
    seed=seeds,
)
def test_rows_are_normed_rotated_and_stored(
    rows: int,
    num_kv_heads: int,
    grouped: int,
    size: int,
    with_norms: bool,
    count: int,
    dtype: torch.dtype,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    num_heads = num_kv_heads * grouped
    qkv = random(rows, (num_heads + 2 * num_kv_heads) * size, dtype=dtype)
    before = qkv.view(rows, -1, size).clone()
    cos, sin = angles(size, dtype)
    positions, slots = torch.randint(50, (rows,)), torch.randperm(64)[:rows]
    keys, values = torch.zeros(2, 64, num_kv_heads, size, dtype=dtype)
    norms = (random(size, dtype=dtype), random(size, dtype=dtype)) if with_norms else None
    with num_threads(count):
        operators(dtype).store_and_attend(
            AttentionShape(num_heads, num_kv_heads, size, 16, size**-0.5, EPS),
            AttentionLayer(*(norms or (None, None)), keys, values),
            AttentionRows.of(cos, sin, positions, slots, None),
            qkv,
            torch.empty(0),
        )
    q, k, v = torch.split(before, [num_heads, num_kv_heads, num_kv_heads], 1)
    if norms is not None:
        q, k = normed(q, norms[0], EPS), normed(k, norms[1], EPS)
    turns = cos[positions, size // 2 :], sin[positions, size // 2 :]
    expected_keys, expected_values = torch.zeros(2, *keys.shape, dtype=torch.float64)
    expected_keys[slots], expected_values[slots] = rotated(k, *turns), v.double()
    found = qkv.view(rows, -1, size)
    assert close(found[:, :num_heads], rotated(q, *turns))
    assert close(keys, expected_keys)
    assert close(values, expected_values)


@many
@given(rows=st.integers(1, 30), width=st.integers(1, 1500), count=threads, dtype=dtypes, seed=seeds)
def test_norms_are_root_mean_square_norms(
    rows: int, width: int, count: int, dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    hidden, weight = random(rows, width, dtype=dtype), random(width, dtype=dtype)
    with num_threads(count):
        result = operators(dtype).rms_norm(hidden, weight, EPS)
    assert close(result, normed(hidden, weight, EPS))


@many
@given(rows=st.integers(1, 30), width=st.integers(1, 1500), count=threads, dtype=dtypes, seed=seeds)
def test_silu_mul_gates_the_second_half(
    rows: int, width: int, count: int, dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    gate_up = random(rows, 2 * width, dtype=dtype)
    gate, up = gate_up.double().chunk(2, -1)
    with num_threads(count):
        result = operators(dtype).silu_mul(gate_up)
    assert close(result, gate * gate.sigmoid() * up)


@many
@given(
    rows=st.integers(1, 9),
    width=st.integers(1, 5000),
    num_values=st.integers(1, 400),
    with_nan=st.booleans(),
    count=threads,
    dtype=dtypes,
    seed=seeds,
)
def test_the_greatest_is_the_first_of_equals_and_a_nan_is_greater(
    rows: int,
    width: int,
    num_values: int,
    with_nan: bool,
    count: int,
    dtype: torch.dtype,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    values = (torch.randint(num_values, (rows, width)) - num_values // 2).to(dtype)
    values[torch.rand(rows, width) < 0.2] = float("-inf")
    if with_nan:
        values[torch.rand(rows, width) < 2 / width] = float("nan")
    with num_threads(count):
        best, found = operators(dtype).greatest(values)
    expected = values.max(-1, keepdim=True).values
    is_best = torch.where(expected.isnan(), values.isnan(), values == expected)
    assert torch.equal(found, is_best.int().argmax(-1))
    assert torch.equal(best.nan_to_num(7e9), expected[:, 0].nan_to_num(7e9))


@pytest.mark.parametrize("gate", [-3e38, -100.0, 100.0, 3e38])
def test_a_gate_far_out_is_shut_or_open(gate: float) -> None:
    result = operators(torch.float32).silu_mul(torch.tensor([[gate, 1.0]]))
    assert result.item() == pytest.approx(max(gate, 0.0), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_no_number_stays_none(dtype: torch.dtype, wrong: float) -> None:
    compiled = operators(dtype)
    pool = Pool.of([70], 1, 64, 16, dtype).on("cpu")
    pool.keys[pool.slots(0)[40]] = wrong
    output, slots = torch.empty(1, 64, dtype=dtype), pool.slots(0)[-1:]
    contexts = Contexts(1, pool.tables, pool.lengths, None)
    compiled.store_and_attend(
        AttentionShape(1, 1, 64, 16, 1.0, EPS),
        AttentionLayer(None, None, pool.keys, pool.values),
        AttentionRows.of(*angles(64, dtype), torch.tensor([3]), slots, contexts),
        torch.ones(1, 192, dtype=dtype),
        output,
    )
    assert not bool(output.isfinite().any())
    rows = torch.tensor([[1.0, wrong]], dtype=dtype)
    assert not bool(compiled.rms_norm(rows, torch.ones(2, dtype=dtype), EPS)[0, 1].isfinite())
    assert not bool(compiled.silu_mul(rows.flip(1))[0].isfinite())
