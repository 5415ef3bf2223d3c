"""Greedy output is ``generate()``'s, whatever the batch, the chunk and the block size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.forward_pass import ForwardPass
from headway.request import SamplingParams, StreamKey
from services.worker.engine.options import Kernels
from tests.fakes.engine_rig import (
    FAMILIES,
    Run,
    Schedule,
    backend,
    load,
    prompt,
    reference_model,
    reference_output,
    save_checkpoint,
)

HEADWAY_MINI = str(Path(__file__).parents[3] / "models" / "headway-mini")
requests = st.lists(
    st.tuples(st.integers(1, 70), st.integers(1, 12), st.integers(0, 9)), min_size=1, max_size=6
)


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    wanted=requests,
    block_size=st.sampled_from([1, 5, 16]),
    chunk=st.integers(1, 90),
    seed=st.integers(0, 99),
)
def test_any_schedule_gives_the_tokens_of_generate(
    checkpoints: dict[str, str],
    family: str,
    kernels: Kernels,
    wanted: list[tuple[int, int, int]],
    block_size: int,
    chunk: int,
    seed: int,
) -> None:
    folder = checkpoints[family]
    runs = [Run(prompt(length, variant), count) for length, count, variant in wanted]
    Schedule(backend(folder, block_size, kernels), chunk=chunk, seed=seed).complete(runs)
    for run in runs:
        assert run.output == reference_output(folder, run.prompt, run.num_tokens)


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_contexts_of_very_different_lengths_decode_together(llama: str, kernels: Kernels) -> None:
    lengths = (700, 3, 350, 1, 90, 2, 5, 95)
    runs = [Run(prompt(length), 6) for length in lengths]
    Schedule(backend(llama, 16, kernels), chunk=4096).complete(runs)
    for run in runs:
        assert run.output == reference_output(llama, run.prompt, run.num_tokens)


def test_a_context_can_be_filled_to_the_last_token(llama: str) -> None:
    run = Run(prompt(1020), 4)
    Schedule(backend(llama, 5), chunk=300).complete([run])
    assert run.output == reference_output(llama, run.prompt, 4)


def test_a_preempted_request_is_recomputed_to_the_same_end(llama: str) -> None:
    run = Run(prompt(30), 12)
    schedule = Schedule(backend(llama, 5), chunk=16)
    while len(run.output) < 6:
        schedule.step([run])
    schedule.pool.release(run.blocks)
    run.num_computed = 0
    schedule.complete([run])
    assert run.output == reference_output(llama, run.prompt, 12)


def test_results_come_in_the_plans_order_with_those_that_ask(llama: str) -> None:
    runs = [Run(prompt(length), 1) for length in (4, 1, 9)]
    for number, run in enumerate(runs):
        run.key = run.key._replace(stream_id=number)
        run.blocks = [number]
    items = [runs[0].item(4), runs[1].item(1), runs[2].item(3)]
    result = backend(llama, 16).run(ForwardPass(5, tuple(items)))
    assert result.pass_id == 5
    assert result.pass_time > 0
    assert [sampled.key.stream_id for sampled in result.sampled] == [0, 1]


def test_headway_mini_answers_as_generate_does() -> None:
    lengths = ((40, 60), (7, 90), (300, 20), (1, 40))
    runs = [Run(prompt(length), count) for length, count in lengths]
    Schedule(backend(HEADWAY_MINI, 16), chunk=64, seed=3).complete(runs)
    reference_model(HEADWAY_MINI).generation_config.eos_token_id = None
    for run in runs:
        assert run.output == reference_output(HEADWAY_MINI, run.prompt, run.num_tokens)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_near_the_models_own_log_probabilities(llama: str, dtype: str) -> None:
    engine = load(llama, num_blocks=8, dtype=dtype)
    run = Run(prompt(40), 1, SamplingParams(temperature=0.0, num_logprobs=5))
    Schedule(engine, chunk=17).complete([run])
    with torch.inference_mode():
        logits = reference_model(llama)(torch.tensor([run.prompt])).logits[0, -1]
    expected = logits.log_softmax(-1)
    assert engine.info.dtype == dtype
    assert run.logprobs[0] is not None
    for token, logprob in zip(
        run.logprobs[0].top_token_ids, run.logprobs[0].top_logprobs, strict=True
    ):
        assert logprob == pytest.approx(float(expected[token]), abs=0.3)


def test_warming_up_leaves_the_engine_as_it_was(llama: str) -> None:
    engine = load(llama, num_blocks=16)
    engine.warm_up()
    run = Run(prompt(50), 5)
    Schedule(engine).complete([run])
    assert run.output == reference_output(llama, run.prompt, 5)


def test_hidden_states_are_those_that_the_next_token_is_drawn_from(llama: str) -> None:
    engine = backend(llama, 8)
    prompts = [tuple(range(5, 5 + length)) for length in (9, 1, 30)]
    items = []
    for n, asked in enumerate(prompts):
        run = Run(asked, 1, key=StreamKey("gateway", n), blocks=list(range(8 * n, 8 * n + 8)))
        items.append(run.item(len(asked)))
    found = engine.run(ForwardPass(1, tuple(items), hidden=(2, 0))).hidden
    assert found is not None
    assert found.keys == (items[2].key, items[0].key)
    network = reference_model(llama)
    for row, asked in zip(found.values, (prompts[2], prompts[0]), strict=True):
        with torch.inference_mode():
            expected = network.model(torch.tensor([asked])).last_hidden_state[0, -1]
        assert torch.allclose(torch.from_numpy(row).float(), expected, atol=2e-2, rtol=2e-3)
    assert engine.run(ForwardPass(2, tuple(items))).hidden is None


SHARES = [(20, 7, 1), (1, 0, 30), (18, 0, 1), (1, 0, 1)]


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_states_are_those_of_torchs_operators(family: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "initializer_range": 0.1}
    folder = save_checkpoint(tmp_path, family, **sizes)
    ours, theirs = (_last_states(folder, kernels) for kernels in ("auto", "torch"))
    for row, expected in zip(ours, theirs, strict=True):
        assert (row - expected).norm() <= 0.02 * expected.norm()


def _last_states(folder: str, kernels: Kernels) -> list[torch.Tensor]:
    """Of three prompts computed in passes that mix single tokens and chunks."""
    engine = load(folder, num_blocks=12, dtype="bfloat16", kernels=kernels)
    runs = [
        Run(prompt(length), 1, key=StreamKey("g", n), blocks=list(range(4 * n, 4 * n + 4)))
        for n, length in enumerate((40, 7, 33))
    ]
    states: dict[StreamKey, torch.Tensor] = {}
    for shares in SHARES:
        planned = [(run, run.item(count)) for run, count in zip(runs, shares, strict=True) if count]
        items = tuple(item for _, item in planned)
        hidden = engine.run(ForwardPass(1, items, hidden=tuple(range(len(items))))).hidden
        assert hidden is not None
        for (run, item), row in zip(planned, hidden.values, strict=True):
            run.num_computed += len(item.token_ids)
            states[run.key] = torch.from_numpy(row).float()
    assert [run.num_computed for run in runs] == [len(run.prompt) for run in runs]
    return [states[run.key] for run in runs]
