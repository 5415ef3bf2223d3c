"""The Triton kernels against float64, interpreted where there is no GPU, on it where there is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

triton = pytest.importorskip("triton")

from services.worker.engine.gpu.decode import decode_attention  # noqa: E402
from services.worker.engine.gpu.mlp import silu_mul  # noqa: E402
from services.worker.engine.gpu.norm import add_rms_norm, rms_norm  # noqa: E402
from services.worker.engine.gpu.plan import (  # noqa: E402
    MIN_PART_TOKENS,
    plan_decode,
    wanted_parts,
)
from services.worker.engine.gpu.prefill import prefill_attention  # noqa: E402
from services.worker.engine.gpu.store import rope_store  # noqa: E402
from tests.fakes.kernel_reference import (  # noqa: E402
    DEVICE,
    DTYPES,
    Pool,
    close,
    dtypes,
    head_sizes,
    normal,
    normed,
    rotated,
    seeds,
)

pytestmark = pytest.mark.slow

INTERPRETED = triton.knobs.runtime.interpret
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("kernels need a GPU or TRITON_INTERPRET=1", allow_module_level=True)

# The interpreter multiplies bfloat16 matrices as the integers it keeps them in.
product_dtypes = st.sampled_from(list(DTYPES)[: 2 if INTERPRETED else 3])
# Without shrinking: an interpreted kernel takes up to a second.
few = settings(
    max_examples=20, deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate)
)


@few
@given(
    lengths=st.lists(st.integers(1, 700), min_size=1, max_size=4),
    num_kv_heads=st.integers(1, 3),
    grouped=st.sampled_from([1, 3, 4, 8, 20]),
    size=head_sizes,
    block_size=st.sampled_from([8, 16, 64, 128]),
    num_processors=st.integers(1, 6),
    dtype=product_dtypes,
    seed=seeds,
)
def test_decode_attends_to_each_requests_whole_context(
    lengths: list[int],
    num_kv_heads: int,
    grouped: int,
    size: int,
    block_size: int,
    num_processors: int,
    dtype: torch.dtype,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    pool = Pool.of(lengths, num_kv_heads, size, block_size, dtype)
    query = normal(len(lengths), num_kv_heads * grouped, size, dtype=dtype)
    output = decode(pool, query, num_processors)
    expected = [pool.attention(query[n : n + 1], n, size**-0.5) for n in range(len(lengths))]
    assert close(output, torch.cat(expected))


def decode(pool: Pool, query: torch.Tensor, num_processors: int) -> torch.Tensor:
    plan = plan_decode(
        pool.lengths, query.shape[1], pool.keys.shape[1], query.shape[2], num_processors
    )
    return decode_attention(
        query,
        pool.keys,
        pool.values,
        pool.tables,
        pool.lengths,
        plan,
        block_size=pool.block_size,
        scale=query.shape[2] ** -0.5,
    )


def test_a_decode_row_of_length_0_reads_nothing_and_gets_zeros() -> None:
    pool = Pool.of([0, 40, 0], 2, 32, 16, torch.float32)
    query = normal(3, 4, 32, dtype=torch.float32)
    output = decode(pool, query, 2)
    assert not output[0].any()
    assert not output[2].any()
    assert close(output[1:2], pool.attention(query[1:2], 1, 32**-0.5))


@few
@given(
    lengths=st.lists(st.integers(0, 5000), min_size=1, max_size=40),
    num_kv_heads=st.integers(1, 8),
    num_processors=st.integers(1, 132),
)
def test_a_plan_gives_each_token_to_one_part_and_no_part_too_many(
    lengths: list[int], num_kv_heads: int, num_processors: int
) -> None:
    tensor = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    plan = plan_decode(tensor, num_kv_heads, num_kv_heads, 16, num_processors)
    parts = zip(plan.owners.tolist(), plan.begins.tolist(), plan.ends.tolist(), strict=True)
    working = [part for part in parts if part[0] >= 0]
    firsts = plan.firsts.tolist()
    limit = max(MIN_PART_TOKENS, -(-sum(lengths) // wanted_parts(num_kv_heads, num_processors)))
    assert firsts[0] == 0
    assert firsts[-1] == len(working)
    for n, length in enumerate(lengths):
        own = working[firsts[n] : firsts[n + 1]]
        assert [owner for owner, _, _ in own] == [n] * len(own)
        edges = [begin for _, begin, _ in own] + [length]
        assert edges == [0] + [end for _, _, end in own]
        assert all(end - begin < limit + MIN_PART_TOKENS for _, begin, end in own)


@few
@given(
    shares=st.lists(st.tuples(st.integers(1, 90), st.integers(0, 150)), min_size=1, max_size=4),
    num_kv_heads=st.integers(1, 2),
    grouped=st.sampled_from([1, 3, 4, 7]),
    size=head_sizes,
    block_size=st.sampled_from([8, 16, 64, 128]),
    dtype=product_dtypes,
    seed=seeds,
)
def test_prefill_rows_see_what_is_before_them(
    shares: list[tuple[int, int]],
    num_kv_heads: int,
    grouped: int,
    size: int,
    block_size: int,
    dtype: torch.dtype,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    counts = [count for count, _ in shares]
    pool = Pool.of([sum(share) for share in shares], num_kv_heads, size, block_size, dtype)
    query = normal(sum(counts), num_kv_heads * grouped, size, dtype=dtype)
    firsts = torch.tensor([0, *counts], dtype=torch.int32, device=DEVICE).cumsum(0).int()
    output = prefill_attention(
        query,
        pool.keys,
        pool.values,
        pool.tables,
        firsts,
        pool.lengths,
        block_size=block_size,
        scale=size**-0.5,
    )
    parts = torch.split(query, counts)
    expected = [pool.attention(part, n, size**-0.5) for n, part in enumerate(parts)]
    assert close(output, torch.cat(expected))


@few
@given(
    rows=st.integers(1, 5),
    num_kv_heads=st.integers(1, 4),
    grouped=st.integers(1, 8),
    size=head_sizes,
    with_norms=st.booleans(),
    wide_angles=st.booleans(),
    dtype=dtypes,
    seed=seeds,
)
def test_rows_are_normed_rotated_and_stored(
    rows: int,
    num_kv_heads: int,
    grouped: int,
    size: int,
    with_norms: bool,
    wide_angles: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    num_heads = num_kv_heads * grouped
    qkv = normal(rows, (num_heads + 2 * num_kv_heads) * size, dtype=dtype)
    angles = torch.rand(rows, size // 2, device=DEVICE) * 6
    cos, sin = angles.cos(), angles.sin()
    wide = [torch.cat([t, t], -1) if wide_angles else t for t in (cos, sin)]
    keys, values = torch.zeros(2, 16, num_kv_heads, size, dtype=dtype, device=DEVICE)
    slots = torch.randperm(16)[:rows].to(DEVICE)
    slots[0] = -1  # not to be stored
    norms = (normal(size, dtype=dtype), normal(size, dtype=dtype)) if with_norms else None
    query = rope_store(
        qkv, wide[0], wide[1], keys, values, slots, num_heads=num_heads, norms=norms, eps=1e-5
    )
    heads = qkv.view(rows, -1, size)
    q, k, v = torch.split(heads, [num_heads, num_kv_heads, num_kv_heads], 1)
    expected_keys, expected_values = (torch.zeros_like(t).double() for t in (keys, values))
    if norms is not None:
        q, k = normed(q, norms[0], 1e-5), normed(k, norms[1], 1e-5)
    expected_keys[slots[1:]] = rotated(k, cos, sin)[1:]
    expected_values[slots[1:]] = v[1:].double()
    assert close(query, rotated(q, cos, sin))
    assert close(keys, expected_keys)
    assert close(values, expected_values)


@few
@given(rows=st.integers(1, 4), width=st.integers(1, 700), dtype=dtypes, seed=seeds)
def test_norms_are_root_mean_square_norms_of_the_sum_as_it_is_kept(
    rows: int, width: int, dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    hidden, residual = (normal(rows, width, dtype=dtype) for _ in range(2))
    weight = normal(width, dtype=dtype)
    result, total = add_rms_norm(hidden, residual, weight, 1e-5)
    assert close(total, hidden.double() + residual.double())
    assert close(result, normed(total, weight, 1e-5))
    assert close(rms_norm(hidden, weight, 1e-5), normed(hidden, weight, 1e-5))


@few
@given(rows=st.integers(1, 4), width=st.integers(1, 1500), dtype=dtypes, seed=seeds)
def test_silu_mul_gates_the_second_half(
    rows: int, width: int, dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    gate_up = normal(rows, 2 * width, dtype=dtype)
    gate, up = gate_up.double().chunk(2, -1)
    assert close(silu_mul(gate_up), gate * gate.sigmoid() * up)
