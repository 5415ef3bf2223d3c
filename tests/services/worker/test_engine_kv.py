"""KV blocks between backends: what is read is what is written, across block sizes and threads."""

from __future__ import annotations

import threading

import pytest

from headway.engine import IncomingKv
from headway.errors import Code, HeadwayError
from tests.fakes.engine_rig import (
    Run,
    Schedule,
    load,
    prompt,
    read_kv,
    reference_output,
    write_kv,
)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bytes_survive_the_round_trip(llama: str, dtype: str) -> None:
    engine = load(llama, num_blocks=20, block_size=4, dtype=dtype)
    Schedule(engine).complete([Run(prompt(60), 1)])
    data = read_kv(engine, [7, 3, 11])
    write_kv(engine, [2, 5, 19], engine.kv_shape(3), dtype, data)
    assert read_kv(engine, [2, 5, 19]) == data
    assert read_kv(engine, [19]) == read_kv(engine, [11])


def test_layers_keys_values_and_tokens_lie_in_the_wires_order(llama: str) -> None:
    engine = load(llama, num_blocks=8, block_size=4)
    layers, two, tokens, kv_heads, head_dim = engine.kv_shape(2)
    assert (layers, two, tokens, kv_heads, head_dim) == (2, 2, 8, 2, 16)
    token_bytes = kv_heads * head_dim * 4
    data = b"".join(
        bytes([16 * plane + token]) * token_bytes for plane in range(4) for token in range(tokens)
    )
    write_kv(engine, [6, 1], (2, 2, 8, 2, 16), "float32", data)
    second = read_kv(engine, [1])
    assert second[::token_bytes] == bytes(
        16 * plane + token for plane in range(4) for token in (4, 5, 6, 7)
    )


def test_kv_travels_while_passes_run(llama: str) -> None:
    engine = load(llama, num_blocks=256, block_size=4)
    schedule, kept = Schedule(engine), Run(prompt(60), 2)
    while not kept.output:
        schedule.step([kept])
    blocks: list[int] = []
    schedule.pool.grow(blocks, 60)
    data = read_kv(engine, kept.blocks[:15])
    runs = [Run(prompt(length), 12) for length in (9, 33)]
    generation = threading.Thread(target=schedule.complete, args=(runs,))
    generation.start()
    while generation.is_alive():
        write_kv(engine, blocks, engine.kv_shape(15), "float32", data)
        assert read_kv(engine, blocks) == data
    generation.join()
    for run in runs:
        assert run.output == reference_output(llama, run.prompt, 12)


@pytest.mark.parametrize(
    ("kv", "said"),
    [
        (([0], (2, 2, 4, 2, 16), "float16", 4), "the KV's dtype is 'float16'.*float32"),
        (
            ([0], (3, 2, 4, 2, 16), "float32", 4),
            r"shape is \(3, 2, 4, 2, 16\).*\(2, 2, tokens, 2, 16",
        ),
        (([0], (2, 2, 4, 4, 16), "float32", 4), "shape is"),
        (([0], (2, 2, 4, 2), "float32", 4), "shape is"),
        (([0], (2, 2, 4, 2, 16), "float32", 5), "computed tokens is 5"),
        (([0], (2, 2, 4, 2, 16), "float32", 0), "computed tokens is 0"),
        (([0], (2, 2, 8, 2, 16), "float32", 5), "computed tokens is 5; it must be at most 4"),
        (([0], (2, 2, 10**9, 2, 16), "float32", 4), "padding"),
        (([8], (2, 2, 4, 2, 16), "float32", 4), "block id is 8; it must be from 0 to 7"),
        (([-1], (2, 2, 4, 2, 16), "float32", 4), "block id is -1"),
    ],
)
def test_a_foreign_kv_is_refused_with_the_value_and_the_limit(
    llama: str, kv: tuple[list[int], tuple[int, ...], str, int], said: str
) -> None:
    engine = load(llama, num_blocks=8, block_size=4)
    with pytest.raises(HeadwayError, match=said) as refused:
        engine.kv_writer(IncomingKv(*kv))
    assert refused.value.code is Code.INVALID_ARGUMENT
