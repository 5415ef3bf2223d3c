"""The contract that a worker's shell relies on, for the fake engine and for torch's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headway.cluster import TOKEN_LAYOUT
from headway.engine import Backend, IncomingKv, PassFailure
from headway.errors import Code, HeadwayError
from headway.forward_pass import PENDING, ForwardPass, PassItem, Swap
from headway.request import StreamKey
from tests.fakes import engine_rig
from tests.fakes.engine_rig import GREEDY, Run, Schedule, prompt, read_kv, write_kv
from tests.fakes.fake_engine import FakeEngine

Make = Callable[..., Backend]


@pytest.fixture(params=["fake", "torch"])
def make(request: pytest.FixtureRequest, llama: str) -> Make:
    """Makes an engine of so many blocks."""

    def make_fake(**options: Any) -> Backend:
        return FakeEngine(**options)

    def make_torch(**options: Any) -> Backend:
        return engine_rig.load(llama, **options)

    return make_fake if request.param == "fake" else make_torch


def whole(run: Run, *, num_blocks: int = 8) -> PassItem:
    run.blocks = run.blocks or list(range(num_blocks))
    return run.item(len(run.prompt) + len(run.output) - run.num_computed)


def step(engine: Backend, run: Run, pass_id: int = 1) -> None:
    item = whole(run)
    result = engine.run(ForwardPass(pass_id, (item,)))
    assert result.pass_id == pass_id
    run.take(item, result.sampled[0])


def alone(make: Make, run: Run) -> list[int]:
    """The same request, undisturbed."""
    copy = Run(run.prompt, run.num_tokens, blocks=list(range(8)))
    engine = make(num_blocks=8, block_size=16)
    while not copy.done:
        step(engine, copy)
    return copy.output


def test_it_says_what_it_is(make: Make) -> None:
    info = make(num_blocks=8, block_size=4, num_host_blocks=3).info
    assert (info.num_blocks, info.block_size, info.num_host_blocks) == (8, 4, 3)
    assert info.kv_num_bytes(2) == 8 * info.kv_bytes_per_token > 0
    assert info.kv_layout == TOKEN_LAYOUT


@pytest.mark.parametrize("block_size", [1, 5, 16])
def test_output_depends_on_neither_the_batch_nor_the_chunks(make: Make, block_size: int) -> None:
    engine = make(num_blocks=1024 // block_size, block_size=block_size)
    runs = [Run(prompt(length, length), 9) for length in (1, 20, 45)]
    Schedule(engine, chunk=13, seed=5).complete(runs)
    assert [run.output for run in runs] == [alone(make, run) for run in runs]


def test_an_empty_pass_is_run(make: Make) -> None:
    result = make(num_blocks=8).run(ForwardPass(3, ()))
    assert (result.pass_id, result.sampled, result.hidden) == (3, (), None)


def test_a_pending_token_is_the_one_that_the_pass_before_drew(make: Make) -> None:
    engine, run = make(num_blocks=8), Run(prompt(9), 3)
    step(engine, run)
    ahead = whole(run)._replace(token_ids=(PENDING,))
    run.take(ahead, engine.run(ForwardPass(2, (ahead,))).sampled[0])
    step(engine, run)
    assert run.output == alone(make, run)


def test_a_pending_token_that_was_not_drawn_is_refused(make: Make) -> None:
    engine, run = make(num_blocks=8), Run(prompt(9), 3)
    step(engine, run)
    engine.run(ForwardPass(2, ()))
    with pytest.raises(PassFailure):
        engine.run(ForwardPass(3, (whole(run)._replace(token_ids=(PENDING,)),)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"start": 1022, "block_table": range(128)}, "reaches 1025 tokens"),
        ({"start": 14}, "its block table holds 16 tokens"),
        ({"block_table": (128,)}, "128 is not a block id"),
        ({"block_table": (-1,)}, "-1 is not a block id"),
    ],
)
def test_an_item_that_cannot_be_is_blamed_and_the_others_go_on(
    make: Make, change: dict[str, Any], said: str
) -> None:
    engine, run = make(num_blocks=128, block_size=16), Run(prompt(20), 4)
    step(engine, run)
    wrong = PassItem(StreamKey("gateway", 9), (1, 2, 3), 0, (9,), True, GREEDY, (1, 2, 3), ())
    with pytest.raises(PassFailure, match=said) as refused:
        engine.run(ForwardPass(2, (whole(run), wrong._replace(**change))))
    assert refused.value.keys == (wrong.key,)
    while not run.done:
        step(engine, run)
    assert run.output == alone(make, run)


def test_states_are_returned_of_the_items_that_are_named(make: Make) -> None:
    engine = make(num_blocks=8, block_size=16)
    runs = [Run(prompt(5 + n), 1, key=StreamKey("g", n), blocks=[n]) for n in range(3)]
    items = tuple(run.item(99) for run in runs)
    hidden = engine.run(ForwardPass(1, items, hidden=(2, 0))).hidden
    assert hidden is not None
    assert hidden.keys == (runs[2].key, runs[0].key)
    assert hidden.values.shape[0] == 2


@pytest.mark.parametrize(("from_size", "to_size"), [(16, 16), (5, 16), (16, 5), (1, 5)])
def test_kv_moves_to_another_engine_whatever_their_blocks(
    make: Make, from_size: int, to_size: int
) -> None:
    source = make(num_blocks=64, block_size=from_size)
    target = make(num_blocks=64, block_size=to_size)
    run = Run(prompt(37), 12, blocks=list(range(3, 63)))
    for _ in range(4):
        step(source, run)
    held = run.blocks[: -(-run.num_computed // from_size)]
    data = read_kv(source, held)
    assert len(data) == source.info.kv_num_bytes(len(held))
    blocks = [63 - n for n in range(40)]
    shape, dtype = source.kv_shape(len(held)), source.info.dtype
    writer = target.kv_writer(IncomingKv(blocks, shape, dtype, run.num_computed))
    for start in range(0, len(data), 1000):
        writer.feed(data[start : start + 1000])
    writer.finish()
    arrived = replace(run, blocks=blocks)
    while not arrived.done:
        step(target, arrived)
    assert arrived.output == alone(make, run)


def test_kv_moves_in_rounds_out_of_and_into_host_memory(make: Make) -> None:
    source = make(num_blocks=16, block_size=4, num_host_blocks=16)
    target = make(num_blocks=16, block_size=4, num_host_blocks=16)
    run = Run(prompt(22), 8, blocks=list(range(12)))
    step(source, run)
    away = Swap(run.key, tuple(range(6)), run.num_computed, tuple(range(9, 3, -1)))
    source.run(ForwardPass(2, (), swapped_out=(away,)))
    first, stop = 8, run.num_computed  # two rounds: two blocks, then the rest
    for start, end, held in ((0, first, away.host_blocks[:2]), (first, stop, away.host_blocks[2:])):
        shape = source.kv_shape(len(held))
        writer = target.kv_writer(IncomingKv(range(6), shape, "float32", end, start, to_host=True))
        writer.feed(read_kv(source, held, from_host=True))
        writer.finish()
    back = Swap(run.key, tuple(range(6)), stop, tuple(range(6)))
    item = whole(run)
    result = target.run(ForwardPass(1, (item,), swapped_in=(back,)))
    run.take(item, result.sampled[0])
    while not run.done:
        step(target, run)
    assert run.output == alone(make, run)


def test_what_is_written_waits_for_a_pass_that_saves_its_own(make: Make) -> None:
    engine = make(num_blocks=8, block_size=4, num_host_blocks=4)
    run = Run(prompt(4), 2, blocks=[0, 1])
    step(engine, run)
    saved = read_kv(engine, (0,))
    leaving = ForwardPass(2, (), swapped_out=(Swap(run.key, (0,), 4, (2,)),))
    engine.expect(leaving)
    shape, new = engine.kv_shape(1), bytes(len(saved))
    writing = threading.Thread(target=write_kv, args=(engine, (0,), shape, "float32", new))
    writing.start()
    engine.run(leaving)
    writing.join(timeout=20)
    assert read_kv(engine, (2,), from_host=True) == saved
    assert read_kv(engine, (0,)) == new


def test_closing_lets_a_writer_go_that_waits(make: Make) -> None:
    engine = make(num_blocks=8, block_size=4, num_host_blocks=4)
    engine.expect(ForwardPass(2, (), swapped_out=(Swap(StreamKey("g", 1), (0,), 4, (2,)),)))
    data = bytes(engine.info.kv_num_bytes(1))
    shape = engine.kv_shape(1)
    writing = threading.Thread(target=write_kv, args=(engine, (0,), shape, "float32", data))
    writing.start()
    engine.close()
    writing.join(timeout=20)
    assert not writing.is_alive()


def test_kv_that_is_not_this_models_is_refused(make: Make) -> None:
    engine = make(num_blocks=8, block_size=4)
    shape, size = engine.kv_shape(1), engine.info.kv_num_bytes(1)
    for blocks, changed, dtype, num_tokens in (
        ([0], shape, "int4", 4),
        ([0], (shape[0] + 1, *shape[1:]), "float32", 4),
        ([0], shape[:4], "float32", 4),
        ([0], shape, "float32", 5),
        ([8], shape, "float32", 4),
        ([-1], shape, "float32", 4),
    ):
        with pytest.raises(HeadwayError) as refused:
            engine.kv_writer(IncomingKv(blocks, changed, dtype, num_tokens))
        assert refused.value.code is Code.INVALID_ARGUMENT
    for num_bytes in (size - 1, size + 1):
        with pytest.raises(HeadwayError, match=f"is {num_bytes}; it must be {size}"):
            write_kv(engine, [0], shape, "float32", bytes(num_bytes))


def test_reading_a_block_that_is_not_there_is_refused(make: Make) -> None:
    with pytest.raises(HeadwayError, match="block id is 8"):
        make(num_blocks=8, block_size=4).read_kv([5, 8])


def test_pieces_are_at_most_a_mebibyte(make: Make) -> None:
    engine = make(num_blocks=3000, block_size=4)
    pieces = [len(piece) for piece in engine.read_kv(range(3000))]
    assert sum(pieces) == engine.info.kv_num_bytes(3000)
    assert max(pieces) <= 2**20
