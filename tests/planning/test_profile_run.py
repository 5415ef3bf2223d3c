"""``headway profile run``: what is measured, what is kept, and what a profile is made of."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cluster import Role, WorkerInfo
from headway.cost.buckets import Buckets
from headway.cost.fit import MeasuredPass
from headway.cost.pass_time import PassTime, Share
from headway.cost.profile import parse_profile, profile_text
from headway.cost.velocity import Saturation
from headway.errors import HeadwayError
from planning.profile.plan import (
    NUM_HALVINGS,
    ChunkSearch,
    RequestSize,
    buckets_within,
    decode_batch,
    kinds,
    knee,
    most_at_a_time,
)
from planning.profile.prefill import tokens_per_s
from planning.profile.result import Deployment, Measured, doubt, fit_passes, make_profile, table
from results.kept import Kept

INFO = WorkerInfo("p", "a:1", Role.PREFILL, "m", 1, 512, 16, 1000, 2048, 3072)
HERE = Deployment("here", "CPU", "float32", "none")
TRUTH = PassTime(base=0.002, per_prefill_token=5e-5, per_request=1e-4, per_kv_token=1e-7)


def measured(chunk: int | None) -> Measured:
    buckets = buckets_within(Buckets(), 2048)
    return Measured(buckets, 3.5, 20_000.0, 50_000.0, [1000.0] * 9, chunk, 40, 0.1)


# --- sizes ------------------------------------------------------------------------------


def test_a_long_input_is_cut_to_what_the_model_takes() -> None:
    assert buckets_within(Buckets(), 2048).input_tokens == (256, 1024, 1438)
    assert buckets_within(Buckets(), 100_000) == Buckets()


def test_a_medium_input_then_lies_halfway() -> None:
    assert buckets_within(Buckets(), 1200).input_tokens == (256, 388, 590)


def test_a_model_that_takes_none_of_them_is_refused_with_the_way_out() -> None:
    with pytest.raises(HeadwayError, match=r"takes 700 tokens.*--input-tokens S,M,L"):
        buckets_within(Buckets(), 700)


@given(st.integers(900, 1 << 20))
def test_every_kind_fits_the_model_and_the_sizes_ascend(max_model_len: int) -> None:
    found = buckets_within(Buckets(), max_model_len)
    assert all(kind.size <= max_model_len for kind in kinds(found))
    assert list(found.input_tokens) == sorted(set(found.input_tokens))


@given(st.integers(1, 9000), st.integers(2, 700), st.integers(0, 5000))
def test_an_aged_request_is_as_long_in_the_end(num_input: int, num_output: int, place: int) -> None:
    aged = RequestSize(num_input, num_output).aged(place)
    assert aged.size == num_input + num_output
    assert aged.num_output >= 2
    assert aged.num_input >= num_input


def test_ages_are_spread_over_a_life() -> None:
    ages = sorted(RequestSize(10, 101).aged(place).num_input - 10 for place in range(50))
    assert all(abs(age - 2 * place) <= 4 for place, age in enumerate(ages))


def test_tokens_that_are_released_are_those_of_requests_that_end() -> None:
    # 10 requests/s of 20 + 5 tokens generate 40 tokens/s here: the first comes from elsewhere
    assert RequestSize(20, 5).released(40.0) == pytest.approx(10 * 25)


def test_a_worker_holds_whole_requests() -> None:
    assert most_at_a_time(INFO, RequestSize(256, 100)) == 1000 // 23
    assert decode_batch(INFO, RequestSize(256, 100), 2046) == (1000 - 256) // 23
    with pytest.raises(HeadwayError, match=r"holds 16000 tokens of KV.*--kv-cache-gib"):
        most_at_a_time(INFO, RequestSize(16_000, 100))


# --- searching --------------------------------------------------------------------------


@given(st.integers(16, 4096), st.floats(1e-6, 1e-2), st.floats(0.001, 1.0))
def test_the_chunk_that_is_found_meets_the_slo_and_is_near_the_largest(
    most: int, per_token: float, slo: float
) -> None:
    search = ChunkSearch(most, slo)
    while (offered := search.offered) is not None:
        search.add(offered * per_token)
    best = max(n for n in range(most + 1) if n * per_token <= slo)
    if search.chunk is None:
        assert best < 16
    else:
        assert best - (most / 2**NUM_HALVINGS + 1) <= search.chunk <= best


@given(st.floats(1.0, 1e6), st.floats(1.0, 1e5))
def test_the_search_ends_at_what_is_released_at_most(most: float, first: float) -> None:
    search = Saturation(first, factor=2.0, tolerance=0.05, patience=2)
    while (offered := search.offered) is not None:
        search.add(min(offered, most))
    assert search.best == min(max(first, most), most)


def test_a_search_with_patience_outlives_one_bad_figure() -> None:
    search = Saturation(8, factor=2.0, tolerance=0.05, patience=2)
    for output in (100.0, 60.0, 300.0, 310.0, 305.0):
        search.add(output)
    assert search.offered is None
    assert search.best == 310.0


def test_a_rate_is_what_ends_behind_the_first_end() -> None:
    assert tokens_per_s([(1.0, 500), (2.0, 100), (3.0, 300)]) == 200.0
    assert tokens_per_s([(1.0, 500)]) == 0.0


def test_a_decoder_is_saturated_with_the_fewest_that_release_the_most() -> None:
    assert knee({8: 100.0, 16: 190.0, 32: 240.0, 64: 250.0, 128: 245.0}, 0.05) == 32


# --- what is kept -----------------------------------------------------------------------


async def never() -> float:
    raise AssertionError("it has been measured")


def test_a_second_call_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    out, settings = tmp_path / "p.toml", {"seconds": 2.0, "worker": ["--model", "m"]}
    first = Kept(out, settings)
    first.put("V_P 100", 99.5)
    first.put("start-up prefill 1", 3.0)
    second = Kept(out, settings)
    assert second.read() == 2
    assert asyncio.run(second.value("V_P 100", never)) == 99.5
    assert second.starting_with("start-up ") == [3.0]
    assert second.by_number("V_P ") == {100: 99.5}
    second.forget()
    assert Kept(out, settings).read() == 0


def test_measurements_of_something_else_are_refused(tmp_path: Path) -> None:
    Kept(tmp_path / "p.toml", {"seconds": 2.0}).put("V_P 100", 99.5)
    with pytest.raises(HeadwayError, match=r"seconds 2.0, this call has 3.0.*--restart"):
        Kept(tmp_path / "p.toml", {"seconds": 3.0}).read()
    (tmp_path / "p.toml.partial.json").write_text("{")
    with pytest.raises(HeadwayError, match=r"cannot be read.*--restart"):
        Kept(tmp_path / "p.toml", {"seconds": 2.0}).read()


# --- the profile ------------------------------------------------------------------------


def passes() -> list[MeasuredPass]:
    shares = [Share(n, 0, 0, 0) for n in range(32, 512, 32)]
    shares += [Share(0, 0, b, 100 * b * c) for b in range(1, 64, 3) for c in (1, 5)]
    return [MeasuredPass([share], TRUTH.seconds(*share)) for share in shares for _ in range(4)]


def test_passes_that_took_the_machine_by_surprise_do_not_count() -> None:
    late = [MeasuredPass(passes()[0].shares, 3.0), MeasuredPass(passes()[50].shares, 5.0)]
    fit = fit_passes([*passes(), *late])
    assert fit.pass_time.base == pytest.approx(TRUTH.base, rel=1e-3)
    assert fit.pass_time.per_request == pytest.approx(TRUTH.per_request, rel=1e-3)


def test_a_machine_that_does_something_else_is_told_of() -> None:
    assert not doubt(fit_passes(passes()))
    rng = random.Random(0)
    wild = [MeasuredPass(p.shares, p.seconds * rng.choice([1, 2, 4])) for p in passes()]
    assert "something else runs on this machine" in doubt(fit_passes(wild))


def test_a_profile_says_what_was_measured_and_what_the_worker_is() -> None:
    profile = make_profile(INFO, HERE, measured(700), fit_passes(passes()))
    assert (profile.kv_capacity_tokens, profile.block_size) == (16_000, 16)
    assert (profile.chunk_tokens, profile.kv_bytes_per_token) == (512, 3072)
    assert profile.convertible_chunk_tokens == 740
    assert profile.convertible_tokens_per_s == pytest.approx(7000)
    assert profile.start_up == 3.5
    assert profile.link_bytes_per_s == 50_000 * 3072
    assert "error median" in profile.origin
    assert parse_profile(profile_text(profile), "it") == profile
    assert dict(table(profile))["V_P"] == "20,000 prompt tokens/s"


def test_without_a_chunk_that_meets_the_slo_there_is_no_convertible() -> None:
    profile = make_profile(INFO, HERE, measured(None), fit_passes(passes()))
    assert profile.convertible_chunk_tokens is None
    assert "over the TPOT SLO" in dict(table(profile))["chunk"]
