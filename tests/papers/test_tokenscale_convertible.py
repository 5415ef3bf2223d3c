"""TokenScale, section IV-D: what a convertible decoder may prefill, and the memory for it."""

from __future__ import annotations

import pytest

from headway.cost.profile import load_profile
from headway.cost.velocity import (
    convertible_velocity,
    reserved_tokens,
    takes_decode,
)
from headway.errors import HeadwayError

A100 = load_profile("llama-8b-a100")
TPOT = 0.1


def test_the_convertible_velocity_is_what_the_batch_leaves_of_the_chunk_over_the_slo() -> None:
    assert convertible_velocity(994, 116, TPOT) == pytest.approx(8780)
    assert convertible_velocity(100, 300, TPOT) == 0.0


@pytest.mark.parametrize(
    "name", ["llama-8b-a100", "qwen-7b-4090d", "qwen-32b-h100-96", "llama-70b-tp4-h100"]
)
def test_a_profiles_convertible_figures_follow_from_its_pass_time(name: str) -> None:
    profile = load_profile(name)
    size = 1024 + 350 / 2
    batch = min(profile.max_batch, profile.kv_capacity_tokens / size)
    spare = TPOT - profile.pass_time.seconds(0, 0, batch, batch * size)
    chunk = int(batch + spare / profile.pass_time.per_prefill_token)
    assert profile.convertible_chunk_tokens == chunk
    said = profile.convertible_velocity(None, TPOT)
    assert said == pytest.approx(convertible_velocity(chunk, batch, TPOT), abs=1)


def test_the_velocity_follows_the_decode_batch_of_now() -> None:
    assert A100.convertible_velocity(94, TPOT) == pytest.approx(9000)
    assert A100.convertible_velocity(0, TPOT) == pytest.approx(9940)


def test_a_convertible_decoder_is_a_decoder_with_a_restricted_chunk() -> None:
    convertible = A100.as_convertible()
    assert convertible.chunk_tokens == A100.convertible_chunk_tokens
    assert convertible.kv_capacity_tokens == A100.kv_capacity_tokens
    with pytest.raises(HeadwayError, match="has no convertible_chunk_tokens"):
        load_profile("deepseek-v3-h800-decode-dp32").as_convertible()


def test_reserved_memory_is_what_arrives_within_the_ttft_slo() -> None:
    assert reserved_tokens(8780.0, 0.4) * 131_072 == pytest.approx(8780 * 0.4 * 131_072)


def test_no_new_decode_work_goes_into_the_reserved_memory() -> None:
    reserved = reserved_tokens(8780.0, 0.4)
    assert takes_decode(136_000, 140_000, reserved)
    assert not takes_decode(137_000, 140_000, reserved)


@pytest.mark.parametrize("slo", [0.0, -1.0, float("nan")])
def test_an_slo_that_is_none_is_refused(slo: float) -> None:
    with pytest.raises(HeadwayError, match="tpot_slo"):
        convertible_velocity(100, 1, slo)
    with pytest.raises(HeadwayError, match="ttft_slo"):
        reserved_tokens(1.0, slo)
