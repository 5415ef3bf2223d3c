"""A key's limits: requests at once, requests that wait, tokens a minute."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.gateway.quotas import Quotas, expected_output
from headway.core.gateway.shares import Bound, Place, Places
from headway.errors import Code, HeadwayError
from headway.request import Request, SamplingParams
from headway.service_class import Quota

KEY = "key ann"
MOST = 80
"""Tokens of the largest prompt and expected output together."""
asks = st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 200))


def request(max_tokens: int, *, expected: float) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens)
    return Request("r", "tiny", (1,), sampling, 0.0, predicted_output_tokens=expected)


def places() -> Places:
    return Places(*(Bound(what, 100, 1.0, "-f") for what in ("waiting", "open", "masks")))


def test_requests_at_once_and_waiting_are_bounded() -> None:
    held = places()
    quotas, quota = Quotas(held), Quota(requests=3, waiting=2)
    held.take(KEY, 2)
    first = Place(held, KEY)
    refused = quotas.refusal(KEY, quota, 1, 4.0, now=0.0)
    assert refused is not None
    assert (refused.code, refused.retry_after) == (Code.RESOURCE_EXHAUSTED, 4.0)
    assert "2 requests that wait" in refused.message
    first.begin()
    assert quotas.refusal(KEY, quota, 1, 4.0, now=0.0) is None
    refused = quotas.refusal(KEY, quota, 2, 4.0, now=0.0)
    assert refused is not None
    assert "3 requests at once" in refused.message
    assert quotas.refusal("key bob", quota, 2, 4.0, now=0.0) is None


def test_more_than_a_key_may_ever_have_is_not_worth_another_try() -> None:
    refused = Quotas(places()).refusal(KEY, Quota(requests=3), 4, 4.0, now=0.0)
    assert refused is not None
    assert (refused.code, refused.retry_after) == (Code.INVALID_ARGUMENT, 0.0)
    assert "3 requests at once, asks for 4" in refused.message


def test_a_minutes_tokens_come_back_steadily() -> None:
    quotas, quota = Quotas(places()), Quota(tokens_per_minute=60)
    assert quotas.refusal(KEY, quota, 1, 1.0, now=0.0) is None
    quotas.use(KEY, quota, 90, now=0.0)
    refused = quotas.refusal(KEY, quota, 1, 1.0, now=0.0)
    assert refused is not None
    assert refused.retry_after == 31.0
    assert quotas.refusal(KEY, quota, 1, 1.0, now=31.0) is None
    assert dict(quotas.headers(KEY, quota, now=31.0)) == {
        "x-ratelimit-limit-tokens": "60",
        "x-ratelimit-remaining-tokens": "1",
        "x-ratelimit-reset-tokens": "59.000s",
    }


def test_without_limits_nothing_is_refused_or_said() -> None:
    quotas = Quotas(places())
    quotas.use(KEY, Quota(), 10**9, now=0.0)
    assert quotas.refusal(KEY, Quota(), 1000, 1.0, now=0.0) is None
    assert not quotas.headers(KEY, Quota(), now=0.0)
    with pytest.raises(HeadwayError):
        Quota(requests=-1)


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 40)), max_size=60))
def test_a_key_never_has_more_than_its_rate_and_one_burst(asks: list[tuple[float, int]]) -> None:
    quotas, quota, now, used = Quotas(places()), Quota(tokens_per_minute=60), 0.0, 0
    for gap, num_tokens in asks:
        now += gap
        if quotas.refusal(KEY, quota, 1, 1.0, now=now) is None:
            quotas.use(KEY, quota, num_tokens, now=now)
            used += num_tokens
    assert used <= 60 + now + 40


def test_a_key_saves_up_a_minutes_tokens_and_no_more() -> None:
    quotas, quota = Quotas(places()), Quota(tokens_per_minute=60)
    quotas.use(KEY, quota, -1000, now=0.0)
    assert quotas.refusal(KEY, quota, 1, 1.0, now=3600.0) is None
    quotas.use(KEY, quota, 60, now=3600.0)
    assert quotas.refusal(KEY, quota, 1, 1.0, now=3600.0) is not None


def test_what_runs_counts_before_it_ends() -> None:
    quotas, quota, asked = Quotas(places()), Quota(tokens_per_minute=60), request(30, expected=20)
    num_begun = 0
    while quotas.refusal(KEY, quota, 1, 1.0, now=0.0) is None:
        quotas.use(KEY, quota, 10 + expected_output(asked), now=0.0)
        num_begun += 1
    assert num_begun == 2
    quotas.use(KEY, quota, 1 - expected_output(asked), now=0.0)
    assert quotas.refusal(KEY, quota, 1, 1.0, now=0.0) is None


def test_an_output_of_which_nothing_is_known_counts_as_a_usual_one() -> None:
    assert expected_output(request(30, expected=0.0)) == 30
    assert expected_output(request(100_000, expected=0.0)) == 256
    assert expected_output(request(100_000, expected=900.0)) == 900


@given(st.lists(st.tuples(st.floats(0, 30), asks), max_size=60), st.randoms())
def test_overlapping_requests_have_their_rate_and_what_nobody_expected(
    arrivals: list[tuple[float, tuple[int, int, int]]], drawn: random.Random
) -> None:
    quotas, quota, now = Quotas(places()), Quota(tokens_per_minute=60), 0.0
    open_: list[tuple[int, int]] = []
    charged = unexpected = 0
    for gap, (num_prompt, expected, actual) in arrivals:
        now += gap
        while open_ and drawn.random() < 0.4:
            asked, had = open_.pop(drawn.randrange(len(open_)))
            quotas.use(KEY, quota, had - asked, now=now)
            charged += had - asked
            unexpected += max(0, had - asked)
        if quotas.refusal(KEY, quota, 1, 1.0, now=now) is None:
            quotas.use(KEY, quota, num_prompt + expected, now=now)
            charged += num_prompt + expected
            open_.append((expected, actual))
        assert charged <= 60 + now + MOST + unexpected + 1e-6
