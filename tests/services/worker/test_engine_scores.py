"""Log probabilities of prompts: those of the model, however the prompt is cut into chunks."""

from __future__ import annotations

import pytest
import torch

from headway.forward_pass import ForwardPass
from headway.request import SamplingParams
from tests.fakes.engine_rig import Run, Schedule, load, prompt, reference_model

SCORED = SamplingParams(temperature=0.0, num_prompt_logprobs=2)


@pytest.mark.parametrize("chunk", [3, 200])
def test_a_prompts_log_probabilities_are_the_models(llama: str, chunk: int) -> None:
    runs = [Run(prompt(length), 2, SCORED) for length in (90, 1, 2, 17)]
    Schedule(load(llama, num_blocks=32), chunk=chunk, seed=1).complete(runs)
    for run in runs:
        with torch.inference_mode():
            logits = reference_model(llama)(torch.tensor([run.prompt])).logits[0]
        expected = logits.log_softmax(-1)
        first, second = run.logprobs
        assert first is not None
        assert second is None, "the prompt comes with the first token alone"
        assert len(first.prompt) == len(run.prompt) - 1
        for place, found in enumerate(first.prompt):
            row, token = expected[place], run.prompt[place + 1]
            assert found.logprob == pytest.approx(float(row[token]), abs=1e-4)
            assert found.top_logprobs == pytest.approx(row.topk(2).values.tolist(), abs=1e-4)


def test_scores_of_a_request_that_leaves_are_dropped(llama: str) -> None:
    engine = load(llama, num_blocks=32)
    run = Run(prompt(40), 1, SCORED, blocks=[0, 1, 2])
    engine.run(ForwardPass(1, (run.item(8),)))
    engine.run(ForwardPass(2, (), ended=(run.key,)))
    run.num_computed = 8
    (sampled,) = engine.run(ForwardPass(3, (run.item(32),))).sampled
    assert sampled.logprobs is not None
    assert sampled.logprobs.prompt == (), "some are missing, so none is said"


def test_a_pass_says_how_long_its_scores_took(llama: str) -> None:
    engine = load(llama, num_blocks=32)
    plain = Run(prompt(40), 1, SamplingParams(temperature=0.0), blocks=[0, 1, 2])
    assert engine.run(ForwardPass(1, (plain.item(40),))).score_time == 0.0
    scored = Run(prompt(40), 1, SCORED, blocks=[3, 4, 5])
    result = engine.run(ForwardPass(2, (scored.item(40),)))
    assert 0.0 < result.score_time < result.pass_time
