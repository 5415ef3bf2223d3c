"""A real model: greedy output is ``generate()``'s, and bfloat16 errs no more than transformers'."""

from __future__ import annotations

from functools import cache
from statistics import fmean
from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM

from headway.request import SamplingParams
from tests.fakes.engine_rig import Run, Schedule, load, reference_model
from tests.fakes.kernel_reference import HAS_COMPILER
from tests.fakes.real_model import QUESTIONS, REAL_MODEL, chat_tokens, needs_real_model

pytestmark = [needs_real_model, pytest.mark.slow, pytest.mark.timeout(900)]

NUM_TOKENS = 16
SCORED = SamplingParams(temperature=0.0, num_prompt_logprobs=0)


def test_greedy_output_is_that_of_generate_in_any_schedule() -> None:
    runs = [Run(chat_tokens(question), NUM_TOKENS) for question in QUESTIONS]
    Schedule(load(REAL_MODEL, num_blocks=128, dtype="float32"), chunk=40, seed=2).complete(runs)
    for run in runs:
        _expect_greatest(run)


def _expect_greatest(run: Run) -> None:
    """Every token has the greatest logit after those before it, or one that ties with it."""
    tokens = (*run.prompt, *run.output)
    with torch.inference_mode():
        logits = reference_model(REAL_MODEL)(torch.tensor([tokens])).logits[0]
    after = logits[len(run.prompt) - 1 : -1]
    chosen = after.gather(-1, torch.tensor(run.output)[:, None])[:, 0]
    assert (after.amax(-1) - chosen).max() < 1e-3


def test_bfloat16_errs_no_more_than_transformers_own_bfloat16() -> None:
    exact = _own_logprobs(torch.float32)
    theirs = _error(_own_logprobs(torch.bfloat16), exact)
    engine = load(REAL_MODEL, num_blocks=128, dtype="bfloat16")
    runs = [Run(chat_tokens(question), 1, SCORED) for question in QUESTIONS]
    Schedule(engine, chunk=48, seed=1).complete(runs)
    ours = _error([logprob for run in runs for logprob in _prompt_logprobs(run)], exact)
    said = f"mean error of {len(exact)} log probabilities: ours {ours:.4f}, theirs {theirs:.4f}"
    assert ours <= theirs * (1.0 if engine.info.kernels == "native" else 1.1), said


def test_a_deterministic_pass_gives_the_same_bits_in_any_company() -> None:
    if not HAS_COMPILER:
        pytest.skip("a deterministic pass needs compiled kernels")
    engine = load(REAL_MODEL, num_blocks=128, dtype="bfloat16", deterministic=True)
    found = []
    for seed, chunk in enumerate((24, 400)):
        sampling = SamplingParams(temperature=0.0, num_logprobs=1)
        runs = [Run(chat_tokens(question), 8, sampling) for question in QUESTIONS]
        Schedule(engine, chunk=chunk, seed=seed).complete(runs)
        found.append([(run.output, run.logprobs) for run in runs])
    assert found[0] == found[1]


def _prompt_logprobs(run: Run) -> list[float]:
    (first,) = run.logprobs
    assert first is not None
    return [each.logprob for each in first.prompt]


def _error(found: list[float], exact: list[float]) -> float:
    return fmean(abs(one - other) for one, other in zip(found, exact, strict=True))


@cache
def _own_logprobs(dtype: torch.dtype) -> list[float]:
    """Of all prompts' tokens but the first, by transformers in that dtype."""
    network = cast(Any, AutoModelForCausalLM).from_pretrained(REAL_MODEL, dtype=dtype).eval()
    found: list[float] = []
    for question in QUESTIONS:
        prompt = torch.tensor([chat_tokens(question)])
        with torch.inference_mode():
            logprobs = network(prompt).logits[0, :-1].float().log_softmax(-1)
        found += logprobs.gather(-1, prompt[0, 1:, None])[:, 0].tolist()
    return found
