"""Drawing tokens: every parameter against a plain float64 reference, and its repeatability."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from headway.forward_pass import PENDING, PassItem
from headway.request import SamplingParams, StreamKey
from services.worker.engine.penalties import adjust
from services.worker.engine.sampler import (
    best_of,
    draw,
    filtered_probs,
    greatest,
    invert,
    uniform,
)
from tests.fakes.engine_rig import Run, Schedule, backend, prompt, reference_model

EOS = (3, 4)


def logits_of(
    rows: int, vocab_size: int = 50, seed: int = 0, dtype: str = "float32"
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(rows, vocab_size, generator=generator)).to(getattr(torch, dtype))


def item(
    sampling: SamplingParams, output: Sequence[int] = (), prompt_ids: Sequence[int] = (1,)
) -> PassItem:
    start = len(prompt_ids) + len(output) - 1
    return PassItem(StreamKey("g", 1), (1,), start, (0,), True, sampling, prompt_ids, output)


def plain_probs(logits: Sequence[float], params: SamplingParams) -> list[float]:
    """The distribution by the book: temperature, min-p, top-k, top-p, each renormalised."""

    def normalised(weights: list[float]) -> list[float]:
        return [weight / sum(weights) for weight in weights]

    greatest = max(logits)
    probs = normalised([math.exp((x - greatest) / params.temperature) for x in logits])
    least = params.min_p * max(probs)
    probs = normalised([p if p >= least else 0.0 for p in probs])
    if params.top_k:
        kth = sorted(probs, reverse=True)[: params.top_k][-1]
        probs = normalised([p if p >= kth else 0.0 for p in probs])
    if params.top_p < 1:
        better = [sum(q for q in probs if q > p) for p in probs]
        kept = [p if b < params.top_p else 0.0 for p, b in zip(probs, better, strict=True)]
        probs = normalised(kept)
    return probs


def plain_draw(probs: Sequence[float], point: float) -> int:
    cumulative = 0.0
    for token, p in enumerate(probs):
        cumulative += p
        if cumulative > point:
            return token
    raise AssertionError("probabilities sum to 1")


SETTINGS = [
    SamplingParams(),
    SamplingParams(temperature=0.3),
    SamplingParams(temperature=2.0),
    SamplingParams(top_k=1),
    SamplingParams(top_k=7),
    SamplingParams(top_k=5_000),
    SamplingParams(top_p=0.6),
    SamplingParams(top_p=1e-9),
    SamplingParams(min_p=0.2),
    SamplingParams(min_p=1.0),
    SamplingParams(temperature=1.4, top_k=9, top_p=0.8, min_p=0.01),
    SamplingParams(temperature=0.01, top_p=0.99),
]


@pytest.mark.parametrize("params", SETTINGS)
def test_a_distribution_is_filtered_as_the_book_says(params: SamplingParams) -> None:
    logits = logits_of(3)
    probs = filtered_probs(logits, [params] * 3)
    probs = probs / probs.sum(-1, keepdim=True)
    for row, expected in zip(probs.tolist(), logits.tolist(), strict=True):
        assert row == pytest.approx(plain_probs(expected, params), abs=1e-12)


def test_rows_with_different_settings_do_not_mix() -> None:
    logits = logits_of(len(SETTINGS))
    together = filtered_probs(logits, SETTINGS)
    for n, params in enumerate(SETTINGS):
        row = together[n] / together[n].sum()
        assert row.tolist() == pytest.approx(plain_probs(logits[n].tolist(), params), abs=1e-12)


@pytest.mark.parametrize("top_p", [0.3, 0.999])
def test_a_nucleus_may_be_any_share_of_a_large_vocabulary(top_p: float) -> None:
    logits = logits_of(1, vocab_size=5000)
    probs = filtered_probs(logits, [SamplingParams(top_p=top_p)])
    expected = plain_probs(logits[0].tolist(), SamplingParams(top_p=top_p))
    assert [p > 0 for p in probs[0].tolist()] == [p > 0 for p in expected]


def test_equal_probabilities_are_kept_or_dropped_together() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]])
    for params in (SamplingParams(top_k=2), SamplingParams(top_p=0.6)):
        assert (filtered_probs(logits, [params]) > 0).tolist() == [[True] * 4 + [False]]


@pytest.mark.parametrize("params", SETTINGS)
def test_a_token_is_the_inverse_distribution_at_the_positions_uniform(
    params: SamplingParams,
) -> None:
    logits = logits_of(40, seed=1)
    items = [item(replace(params, seed=n * n), output=[0] * n) for n in range(40)]
    for n, (token, _) in enumerate(draw(logits, items, EOS)):
        expected = plain_draw(plain_probs(logits[n].tolist(), params), uniform(n * n, n))
        assert token == expected


def test_the_largest_uniform_draws_the_last_token_that_has_mass() -> None:
    largest = 1 - 2.0**-53
    rows = [[0.25, 0.5, 0.0], [1e-300, 0.0, 0.0], [0.1, 0.7, 0.1]]
    probs = torch.tensor(rows, dtype=torch.float64)
    assert invert(probs, [largest] * 3).tolist() == [1, 0, 2]
    assert invert(probs, [0.0] * 3).tolist() == [0, 0, 0]


def test_draws_over_many_seeds_follow_the_distribution() -> None:
    logits = logits_of(1, vocab_size=12)
    params = SamplingParams(temperature=1.5)
    items = [item(replace(params, seed=seed)) for seed in range(4000)]
    counts = Counter(token for token, _ in draw(logits.expand(4000, -1), items, EOS))
    for token, p in enumerate(plain_probs(logits[0].tolist(), params)):
        assert counts[token] / 4000 == pytest.approx(p, abs=4 * math.sqrt(0.25 / 4000))


def test_uniforms_are_even_and_differ_by_seed_and_position() -> None:
    points = [uniform(seed, position) for seed in range(60) for position in range(60)]
    assert len(set(points)) == 3600
    assert 0 <= min(points) <= max(points) < 1
    for tenth in range(10):
        share = sum(tenth / 10 <= point < (tenth + 1) / 10 for point in points) / 3600
        assert share == pytest.approx(0.1, abs=0.02)
    # Pinned: another stream would change the text of every seeded request.
    assert uniform(0, 0) == pytest.approx(PINNED[0], abs=1e-15)
    assert uniform(2**64 - 1, 1000) == pytest.approx(PINNED[1], abs=1e-15)


PINNED = (0.6524484863740322, 0.033884161635479915)


def test_temperature_zero_is_the_first_of_the_greatest() -> None:
    logits = torch.tensor([[0.0, 5.0, 5.0, 1.0]])
    greedy = item(SamplingParams(temperature=0.0, top_p=0.1, seed=9))
    assert draw(logits, [greedy], EOS)[0][0] == 1


def plain_penalties(logits: list[float], asked: PassItem) -> list[float]:
    params, output = asked.sampling, Counter(asked.output_token_ids)
    result = []
    for token, value in enumerate(logits):
        if token in output or token in asked.prompt_token_ids:
            factor = params.repetition_penalty
            value = value / factor if value > 0 else value * factor
        value -= params.frequency_penalty * output[token]
        value -= params.presence_penalty * (output[token] > 0)
        result.append(value)
    return result


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(repetition_penalty=1.7),
        SamplingParams(repetition_penalty=0.5),
        SamplingParams(presence_penalty=1.5),
        SamplingParams(frequency_penalty=-0.4),
        SamplingParams(repetition_penalty=1.2, presence_penalty=-1, frequency_penalty=0.3),
    ],
)
def test_penalties_change_what_was_seen_and_nothing_else(params: SamplingParams) -> None:
    logits = logits_of(4)
    asked = [
        item(params, output=(5, 5, 9, 5), prompt_ids=(1, 2, 9, 9)),
        item(SamplingParams(), output=(5, 5), prompt_ids=(6,)),
        item(params, output=(), prompt_ids=(7,)),
        item(params, output=(49, 0), prompt_ids=(0,)),
    ]
    before = logits.clone()
    adjusted = adjust(logits, asked, EOS)
    assert torch.equal(logits, before)
    for n, one in enumerate(asked):
        assert adjusted[n].tolist() == pytest.approx(
            plain_penalties(logits[n].tolist(), one), abs=1e-5
        )


def test_a_repetition_penalty_near_zero_still_draws_a_token_that_was_seen() -> None:
    params = SamplingParams(repetition_penalty=1e-60)
    logits = torch.tensor([[0.0, 2.0, 3.0, 4.0, 5.0]])
    drawn = {
        draw(logits, [item(replace(params, seed=seed), prompt_ids=(1, 3))], EOS)[0][0]
        for seed in range(40)
    }
    assert drawn == {1, 3}


def test_no_end_is_drawn_before_the_minimum_length() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=9, min_tokens=3, stop_token_ids=(7, 999))
    logits = torch.zeros(1, 20)
    logits[0, [3, 4, 7, 11]] = torch.tensor([9.0, 8.0, 7.0, 6.0])
    assert draw(logits, [item(params, output=(1, 1))], EOS)[0][0] == 11
    assert draw(logits, [item(params, output=(1, 1, 1))], EOS)[0][0] == 3


def test_log_probabilities_are_the_models_own_best_first() -> None:
    logits = logits_of(3)
    asked = [
        item(SamplingParams(temperature=1.8, num_logprobs=4, presence_penalty=2.0), output=(5, 6)),
        item(SamplingParams(temperature=0.0)),
        item(SamplingParams(temperature=0.0, num_logprobs=0)),
    ]
    drawn = draw(logits, asked, EOS)
    expected = logits.double().log_softmax(-1)
    best = sorted(range(50), key=lambda token: -float(expected[0, token]))[:4]
    (token, first), (_, second), (other, third) = drawn
    assert first is not None
    assert first.logprob == pytest.approx(float(expected[0, token]), abs=1e-5)
    assert list(first.top_token_ids) == best
    assert list(first.top_logprobs) == pytest.approx(expected[0, best].tolist(), abs=1e-5)
    assert second is None
    assert third is not None
    assert third.logprob == pytest.approx(float(expected[2, other]), abs=1e-5)
    assert third.top_token_ids == ()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_logits_are_drawn_from_in_full_precision(dtype: str) -> None:
    logits = logits_of(5, dtype=dtype)
    items = [item(SamplingParams(seed=n, top_p=0.7)) for n in range(5)]
    assert draw(logits, items, EOS) == draw(logits.float(), items, EOS)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_is_marked_and_spoils_no_other(bad: float) -> None:
    logits = logits_of(4)
    params = [SamplingParams(seed=n, temperature=n % 2, num_logprobs=n) for n in range(4)]
    items = [item(one) for one in params]
    whole = draw(logits, items, EOS)
    logits[2, 7] = logits[3, 7] = bad
    spoilt = draw(logits, items, EOS)
    assert spoilt[:2] == whole[:2]
    assert [token for token, _ in spoilt[2:]] == [-1, -1]


@pytest.mark.parametrize("size", [5, 4096, 4999, 9000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_greatest_is_found_in_a_vocabulary_of_any_size(size: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(size)
    logits = torch.randint(0, 60, (40, size), generator=generator).to(dtype)  # with many equals
    logits[1, size - 1] = logits[2, 0] = 99
    logits[3, size // 2] = logits[4, size - 1] = math.nan
    logits[5, 3:] = -math.inf
    best, tokens = greatest(logits)
    for row, value, token in zip(
        logits.double().numpy(), best.tolist(), tokens.tolist(), strict=True
    ):
        first = int(row.argmax())  # of equals the first, a NaN before all
        assert token == first
        assert value == row[first] or math.isnan(row[first])


@pytest.mark.parametrize("size", [1, 63, 700, 11_000, 40_001])
@pytest.mark.parametrize("count", [0, 1, 20])
def test_the_best_are_found_in_a_vocabulary_of_any_size(size: int, count: int) -> None:
    logits = logits_of(5, size)
    values, tokens = best_of(logits, count)
    assert values.tolist() == logits.sort(-1, descending=True).values[:, :count].tolist()
    assert logits.gather(1, tokens).equal(values)


def test_a_prompt_is_scored_while_the_pass_behind_it_is_planned() -> None:
    sampling = SamplingParams(num_prompt_logprobs=2)
    assert item(sampling).num_scored == 1
    assert item(sampling)._replace(output_token_ids=[PENDING]).num_scored == 1
    assert item(sampling, [7]).num_scored == 0
    assert item(sampling)._replace(output_token_ids=[7]).num_scored == 0, "it goes on elsewhere"
    assert item(SamplingParams()).num_scored == 0


def test_a_seeded_request_draws_the_same_text_whatever_runs_beside_it(llama: str) -> None:
    params = SamplingParams(temperature=0.9, top_p=0.9, seed=41, max_tokens=60, min_p=0.01)
    alone = Run(prompt(20), 40, params)
    Schedule(backend(llama, 16), chunk=64).complete([alone])
    assert len(set(alone.output)) > 10
    for seed, block_size, chunk in ((1, 16, 64), (2, 5, 9), (3, 1, 33)):
        again = Run(prompt(20), 40, params)
        others = [
            Run(prompt(length), 30, replace(params, seed=length, frequency_penalty=0.5))
            for length in (3, 25, 60)
        ]
        runs = [*others[:2], again, *others[2:]]
        Schedule(backend(llama, block_size), chunk=chunk, seed=seed).complete(runs)
        assert again.output == alone.output


def test_a_resumed_request_draws_what_it_would_have_drawn(llama: str) -> None:
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=60, repetition_penalty=1.2)
    whole = Run(prompt(20), 30, params)
    Schedule(backend(llama, 16)).complete([whole])
    resumed = Run(prompt(20), 30, params, output=whole.output[:13])
    Schedule(backend(llama, 16)).complete([resumed])
    assert resumed.output == whole.output


def test_penalised_text_is_that_of_generate(llama: str) -> None:
    params = SamplingParams(temperature=0.0, repetition_penalty=1.4, max_tokens=60)
    run = Run(prompt(20), 25, params)
    Schedule(backend(llama, 16), chunk=7).complete([run])
    expected = reference_model(llama).generate(
        torch.tensor([run.prompt]), max_new_tokens=25, do_sample=False, repetition_penalty=1.4
    )
    assert run.output == expected[0, 20:].tolist()
