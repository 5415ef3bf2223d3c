"""Recorded decode passes: sizes and padding. On a CPU the run itself stands in for its graph."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.worker.engine.gpu.cuda_graphs import (
    PADDING_SLOT,
    CudaRecorder,
    DecodeBatch,
    DecodeGraphs,
    Run,
    bucket_of,
    bucket_sizes,
)

CPU = torch.device("cpu")


def batch(num_rows: int, num_blocks: int = 1, first: int = 100) -> DecodeBatch:
    ids = torch.arange(first, first + num_rows)
    blocks = torch.arange(num_rows * num_blocks, dtype=torch.int32).view(num_rows, num_blocks)
    return DecodeBatch(ids, ids + 1, ids + 2, ids.int() + 3, blocks + first)


def what_is_seen(static: DecodeBatch) -> torch.Tensor:
    """A model whose hidden states are its input."""
    columns = [static.token_ids, static.positions, static.slots, static.lengths]
    return torch.cat([torch.stack(columns, 1), static.tables], 1)


def replay_by_running(run: Run) -> Run:
    return run


def graphs(limit: int = 16) -> DecodeGraphs:
    return DecodeGraphs(
        what_is_seen, sizes=bucket_sizes(limit), num_columns=3, device=CPU, record=replay_by_running
    )


def test_sizes_are_the_smallest_then_every_eighth_then_every_64th_and_the_limit() -> None:
    assert bucket_sizes(1) == (1,)
    assert bucket_sizes(3) == (1, 2, 3)
    assert bucket_sizes(24) == (*range(1, 9), 16, 24)
    assert bucket_sizes(30) == (*range(1, 9), 16, 24, 30)
    assert bucket_sizes(400)[-5:] == (248, 256, 320, 384, 400)


@given(st.integers(1, 700), st.integers(0, 800))
def test_the_least_size_that_fits_is_taken(limit: int, num_rows: int) -> None:
    sizes = bucket_sizes(limit)
    size = bucket_of(num_rows, sizes)
    fitting = [each for each in sizes if each >= num_rows > 0]
    assert size == (fitting[0] if fitting else None)
    assert (size is not None) == (0 < num_rows <= limit)


def test_a_pass_is_replayed_with_its_own_rows() -> None:
    run = graphs()
    for num_rows in (5, 16, 1, 3, 8):
        given_batch = batch(num_rows, num_blocks=2, first=num_rows * 1000)
        output = run.run(given_batch)
        assert output[:, :6].equal(what_is_seen(given_batch))


def test_rows_beyond_the_pass_are_padding_that_stores_nothing_and_reads_nothing() -> None:
    seen: list[torch.Tensor] = []

    def forward(static: DecodeBatch) -> torch.Tensor:
        seen.append(what_is_seen(static))
        return seen[-1]

    run = DecodeGraphs(
        forward, sizes=(2, 8, 16), num_columns=1, device=CPU, record=replay_by_running
    )
    for num_rows in (8, 5, 16, 7, 2):
        run.run(batch(num_rows))
        padding = seen[-1][num_rows:]
        assert (padding[:, 2] == PADDING_SLOT).all()
        assert not padding[:, [0, 1, 3]].any()


def test_each_size_is_recorded_once_the_largest_first() -> None:
    recorded: list[int] = []

    def record(run: Run) -> Run:
        recorded.append(len(run()))
        return run

    run = DecodeGraphs(
        what_is_seen, sizes=(1, 2, 4, 8, 9), num_columns=1, device=CPU, record=record
    )
    run.record_all()
    assert recorded == [9, 8, 4, 2, 1]
    run.run(batch(3))
    assert len(recorded) == 5
    assert run.holds(9)
    assert not run.holds(10)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are recorded on a GPU")
def test_a_cuda_graph_replays_what_was_recorded() -> None:
    device = torch.device("cuda")
    run = DecodeGraphs(
        what_is_seen,
        sizes=bucket_sizes(16),
        num_columns=3,
        device=device,
        record=CudaRecorder(device),
    )
    for num_rows in (5, 16, 1):
        given_batch = batch(num_rows, num_blocks=2, first=num_rows * 1000)
        assert run.run(given_batch)[:, :6].cpu().equal(what_is_seen(given_batch))
