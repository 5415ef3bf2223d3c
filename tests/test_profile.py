"""Profiles: files that say all and nothing else, and fits that tell how wrong they are."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from math import exp
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cost.fit import MeasuredPass, fit_pass_time
from headway.cost.pass_time import ALL_UNITS, EACH_TERM, PassTime, Share
from headway.cost.profile import (
    Profile,
    load_profile,
    parse_profile,
    profile_names,
    profile_text,
    save_profile,
)
from headway.cost.velocity import Memory, decode_velocity, prefill_velocity
from headway.errors import HeadwayError
from headway.sim.solo import SoloTime
from tests.fakes.pass_times import TRUE

ROOT = Path(__file__).resolve().parents[1]
TEXT = profile_text(load_profile("llama-8b-a100"))


# --- pass time ----------------------------------------------------------------------------


def test_a_pass_is_linear_in_what_is_in_it() -> None:
    assert TRUE.seconds(1000, 5000, 20, 40_000) == pytest.approx(
        0.012 + 0.071 + 1e-5 + 0.002 + 0.004
    )


def test_units_in_lock_step_wait_for_the_slowest() -> None:
    shares = [Share(1000), Share(0, 0, 20, 400_000)]
    assert TRUE.lock_step(shares) == max(TRUE.seconds(*share) for share in shares)


def test_gated_units_wait_for_the_greatest_of_each_term() -> None:
    gated = replace(TRUE, gate=EACH_TERM)
    shares = [Share(0, 0, 20, 1000), Share(0, 0, 2, 90_000)]
    assert gated.lock_step(shares) == gated.seconds(0, 0, 20, 90_000)


def test_units_that_share_their_work_wait_for_all_of_it() -> None:
    shared = replace(TRUE, gate=ALL_UNITS)
    shares = [Share(1000, 500), Share(200, 0, 20, 90_000)]
    assert shared.lock_step(shares) == shared.seconds(1200, 500, 20, 90_000)


def test_velocities_of_units_that_share_their_work_count_all_of_it() -> None:
    shared = replace(TRUE, gate=ALL_UNITS)
    memory = Memory(kv_capacity_tokens=10_000, chunk_tokens=1000, max_batch=8, num_units=4)
    assert prefill_velocity(shared, memory) == 4000 / shared.seconds(4000, 0, 0, 0)
    whole = shared.seconds(0, 0, 4 * 8, 4 * 8 * 550)
    assert decode_velocity(shared, memory, 500, 100) == 4 * 8 * 600 / (100 * whole)


def test_the_passes_of_sbs_own_table_are_met() -> None:
    """3 instances of 8 units: requests/s, tokens of a chunk, and how full chunks are (Table 1)."""
    profile = load_profile("deepseek-v3-h800-prefill-dp8-all-units")
    points = (57, 3072, 0.5183), (70, 3072, 0.887), (70, 5120, 0.53), (79, 5120, 0.88)
    for per_s, chunk, used in points:
        said = 3 * 8 * chunk * used / (per_s * 1024)
        tokens = [Share(round(chunk * used))] * 8
        assert profile.pass_time.lock_step(tokens) == pytest.approx(said, rel=0.03)


def test_nothing_to_run_takes_no_time() -> None:
    assert TRUE.lock_step([]) == 0.0


@pytest.mark.parametrize("wrong", [-1e-9, float("nan"), 4000.0])
def test_a_coefficient_out_of_range_is_refused(wrong: float) -> None:
    with pytest.raises(HeadwayError, match="per_request"):
        PassTime(0.01, per_request=wrong)


# --- files --------------------------------------------------------------------------------


def test_the_papers_set_ups_are_ready_made() -> None:
    assert profile_names() == [
        "codellama-34b-h100",
        "deepseek-v3-h800-decode-dp32",
        "deepseek-v3-h800-prefill-dp8",
        "deepseek-v3-h800-prefill-dp8-all-units",
        "llama-70b-tp4-h100",
        "llama-8b-a100",
        "llama-8b-h100",
        "llama-8b-h100-measured",
        "qwen-32b-h100-96",
        "qwen-72b-tp4-a100",
        "qwen-7b-4090d",
        "qwen-7b-h800",
    ]


@pytest.mark.parametrize("name", profile_names())
def test_a_ready_made_profile_says_where_it_comes_from(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert "estimate" in profile.origin


@pytest.mark.parametrize("name", profile_names())
def test_an_origin_says_of_every_figure_where_it_is_from(name: str) -> None:
    profile = load_profile(name)
    said = profile.origin.lower()
    figures = ("kv bytes", "chunk", "batch", "blocks of", "swaps at", "a link of", "start-up")
    assert not [figure for figure in figures if figure not in said]
    assert "kv capacity" in said or "tokens of kv" in said
    gigabits = 8 * profile.link_bytes_per_s / 1e9
    assert f"a link of {gigabits:.0f} gbit/s" in said
    assert f"{profile.start_up:.0f} s of start-up" in said
    assert f"{profile.chunk_tokens:,}" in said
    assert f"at most {profile.max_batch} requests" in said
    swap = profile.kv_bytes_per_token / profile.swap_per_token / 1e9
    assert f"{swap:.0f} gb/s" in said
    link = profile.link_bytes_per_s / profile.kv_bytes_per_token
    assert profile.network_tokens_per_s == pytest.approx(link, rel=1e-4)
    assert "host memory" in said
    assert profile.host_capacity_tokens == 0


@pytest.mark.parametrize("name", profile_names())
def test_an_estimated_prefill_velocity_is_what_the_pass_time_says(name: str) -> None:
    profile = load_profile(name)
    if profile.prefill_tokens_per_s is not None:
        said = prefill_velocity(profile.pass_time, profile.memory)
        assert profile.prefill_tokens_per_s == pytest.approx(said, rel=0.08)


GEOMETRY = {
    "codellama-34b-h100": (48, 64 * 128, 33.7e9),
    "deepseek-v3-h800-prefill-dp8": (61, 128 * (192 + 128) / 2, 37e9),
    "deepseek-v3-h800-prefill-dp8-all-units": (61, 128 * (192 + 128) / 2, 37e9),
    "llama-70b-tp4-h100": (80, 64 * 128, 70.6e9),
    "llama-8b-a100": (32, 32 * 128, 8.03e9),
    "llama-8b-h100": (32, 32 * 128, 8.03e9),
    "qwen-32b-h100-96": (64, 40 * 128, 32.8e9),
    "qwen-72b-tp4-a100": (80, 64 * 128, 72.7e9),
    "qwen-7b-4090d": (28, 28 * 128, 7.62e9),
    "qwen-7b-h800": (28, 28 * 128, 7.62e9),
}
"""Layers, width of the heads together, parameters that a token meets."""
DECODES_ONLY = {"deepseek-v3-h800-decode-dp32"}
MEASURED = "llama-8b-h100-measured"


def test_every_profile_that_prefills_pays_for_attention() -> None:
    assert set(profile_names()) == set(GEOMETRY) | DECODES_ONLY | {MEASURED}
    for name, (layers, width, num_params) in GEOMETRY.items():
        pass_time = load_profile(name).pass_time
        flop_per_s = 2 * num_params / pass_time.per_prefill_token
        attention = 4 * layers * width / flop_per_s  # QK and AV, 2 FLOP a multiplication each
        assert pass_time.per_prefill_context == pytest.approx(attention, rel=0.01)


@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize("name", sorted(GEOMETRY))
def test_a_long_prompt_takes_what_arithmetic_says(name: str, times: int) -> None:
    """However it is cut: attention costs the same."""
    profile, n = load_profile(name), 100_000
    layers, width, num_params = GEOMETRY[name]
    flop_per_s = 2 * num_params / profile.pass_time.per_prefill_token
    num_flop = 2 * num_params * n + 4 * layers * width * n * n / 2
    chunk = times * profile.chunk_tokens
    num_passes = -(-n // chunk)
    wanted = num_passes * profile.pass_time.base + num_flop / flop_per_s
    assert SoloTime(profile, profile, chunk).of(n, 1) == pytest.approx(wanted, rel=0.06)


def test_the_measured_profile_is_the_fit_of_what_was_measured() -> None:
    report = json.loads((ROOT / "bench/results/h100.json").read_text("utf-8"))
    rows = [row for row in report["passes"]["rows"] if row["seconds"] is not None]
    passes = [MeasuredPass(_share(row), row["seconds"]) for row in rows]
    found, written = fit_pass_time(passes), load_profile(MEASURED)
    for term in found.terms:
        fitted = getattr(found.pass_time, term)
        assert getattr(written.pass_time, term) == pytest.approx(fitted, rel=1e-3)
    assert found.median_error == pytest.approx(0.028, abs=1e-3)
    assert written.kv_capacity_tokens % written.block_size == 0


def _share(row: dict[str, int]) -> Share:
    rows, batch = row["prompt_rows"], row["num_decodes"]
    return Share(rows, rows * row["prompt_start"], batch, batch * row["context_tokens"])


@pytest.mark.parametrize("name", profile_names())
def test_what_is_written_is_read_back_equal(name: str, tmp_path: Path) -> None:
    profile = load_profile(name)
    path = tmp_path / "a.toml"
    save_profile(profile, path)
    assert load_profile(path) == profile


@given(st.text(min_size=1).filter(lambda text: bool(text.strip())))
def test_any_text_survives_the_file(text: str) -> None:
    profile = replace(load_profile("llama-8b-a100"), origin=text)
    assert parse_profile(profile_text(profile), "x").origin == text


def test_a_missing_profile_names_the_command_that_makes_it() -> None:
    with pytest.raises(HeadwayError, match=r"qwen-7b-h800; `headway profile run --model"):
        load_profile("nowhere.toml")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("num_gpus = 1", "num_gpus = 0", "num_gpus is 0; it must be from 1"),
        ("num_gpus = 1", "num_gpus = 1.5", "num_gpus is 1.5; it must be a whole number"),
        ("num_gpus = 1", "num_gpus = true", "num_gpus is True"),
        ("num_gpus = 1", "num_cpus = 1", "a key is 'num_cpus'; it must be one of name"),
        ("kv_bytes_per_token = 131072\n", "", "kv_bytes_per_token is 'missing'"),
        ("base = 0.012", 'base = "fast"', "base is 'fast'; it must be a number"),
        ("base = 0.012", "base = nan", "base is nan"),
        ("base = 0.012", f"base = 1{'0' * 400}", "a number under 1e308"),
        ("S-S = 23535.0\n", "", "S-S is 'missing'"),
        ("S-S = 23535.0", "S-S = 0", "S-S is 0"),
        ("[256, 1024, 8192]", "[256, 256, 8192]", "3 ascending"),
        ("[256, 1024, 8192]", "7", "a list"),
        ('device = "A100-40"', 'device = " "', "a text that says something"),
        ("[pass_time]", "[pass_tiem]", "a key is 'pass_tiem'"),
        ("start_up = 5.0", "start_up = -1", "start_up is -1"),
        ("name =", "name", "is not TOML"),
    ],
)
def test_a_bad_file_is_refused_with_value_limit_and_way_out(old: str, new: str, said: str) -> None:
    assert old in TEXT
    with pytest.raises(HeadwayError) as refused:
        parse_profile(TEXT.replace(old, new, 1), "mine.toml")
    assert said in refused.value.message
    assert "mine.toml" in refused.value.message


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(HeadwayError, match="cannot be read"):
        load_profile(path)


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="cannot be written"):
        save_profile(load_profile("qwen-7b-h800"), tmp_path / "no" / "a.toml")


def test_an_unknown_velocity_is_not_zero() -> None:
    profile = load_profile("deepseek-v3-h800-prefill-dp8")
    with pytest.raises(HeadwayError, match="has no decode_tokens_per_s: measure it"):
        profile.decode_velocity(0)


def test_an_unknown_network_velocity_binds_nothing() -> None:
    profile = replace(load_profile("llama-8b-a100"), network_tokens_per_s=None)
    assert profile.prefill_velocity() == 14_000


# --- the fit ------------------------------------------------------------------------------


def passes(model: PassTime, noise: float = 0.0) -> list[MeasuredPass]:
    rng = random.Random(3)
    measured = []
    for _ in range(200):
        prefill = rng.choice((0, 128, 1024, 2048))
        batch = rng.randrange(1, 200)
        context = prefill * rng.randrange(4096)
        share = Share(prefill, context, batch, batch * rng.randrange(2000))
        seconds = model.seconds(*share) * (1 + rng.uniform(-noise, noise))
        measured.append(MeasuredPass(share, seconds))
    return measured


def assert_close(found: PassTime, true: PassTime, rel: float) -> None:
    for name in ("base", "per_prefill_token", "per_request", "per_kv_token", "per_prefill_context"):
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=rel)


def test_exact_passes_give_the_exact_model() -> None:
    fit = fit_pass_time(passes(TRUE))
    assert_close(fit.pass_time, TRUE, 1e-6)
    assert fit.r_squared == pytest.approx(1)
    assert fit.p95_error < 1e-9
    assert fit.num_passes == 200


def test_noisy_passes_give_the_model_and_say_how_noisy_they_were() -> None:
    fit = fit_pass_time(passes(TRUE, noise=0.1))
    assert_close(fit.pass_time, TRUE, 0.2)
    assert 0.03 < fit.median_error < 0.07
    assert 0.08 < fit.p95_error < 0.12
    assert 0.9 < fit.r_squared < 1


def test_a_term_that_no_pass_has_stays_zero() -> None:
    only_decode = [
        MeasuredPass(Share(0, 0, b, b * k), TRUE.seconds(0, 0, b, b * k))
        for b in (1, 8, 64)
        for k in (100, 1000, 3000)
    ]
    fit = fit_pass_time(only_decode)
    assert fit.terms == ("base", "per_request", "per_kv_token")
    assert fit.pass_time.per_prefill_token == 0.0


def test_no_coefficient_is_negative() -> None:
    faster = [
        MeasuredPass(Share(0, 0, b, k), 0.03 - 1e-4 * b + 1e-7 * k)
        for b in (1, 50, 100)
        for k in (1000, 50_000, 90_000)
    ]
    assert fit_pass_time(faster).pass_time.per_request == 0.0


def test_passes_too_alike_to_tell_the_terms_apart_are_refused() -> None:
    alike = [MeasuredPass(Share(0, 0, b, 100 * b), 0.01 + 1e-4 * b) for b in range(1, 30)]
    with pytest.raises(HeadwayError, match="too alike to tell base, per_request, per_kv_token"):
        fit_pass_time(alike)


def test_one_pass_measured_often_is_refused() -> None:
    with pytest.raises(HeadwayError, match="too alike"):
        fit_pass_time([MeasuredPass(Share(512), 0.05)] * 20)


def test_too_few_passes_are_refused() -> None:
    with pytest.raises(HeadwayError, match="number of passes is 3; it must be at least 8"):
        fit_pass_time(passes(TRUE)[:3])


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_no_time_is_refused_with_its_place(seconds: float) -> None:
    wrong = [*passes(TRUE), MeasuredPass(Share(1), seconds)]
    with pytest.raises(HeadwayError, match="pass 200's time"):
        fit_pass_time(wrong)


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(HeadwayError, match="pass 200's batch"):
        fit_pass_time([*passes(TRUE), MeasuredPass(Share(0, 0, -1, 0), 0.1)])


def test_the_same_passes_give_the_same_fit() -> None:
    measured = passes(TRUE, noise=0.05)
    assert fit_pass_time(measured) == fit_pass_time(measured)


def test_a_profile_holds_what_was_fitted() -> None:
    fitted = fit_pass_time(passes(TRUE)).pass_time
    profile: Profile = replace(load_profile("llama-8b-a100"), pass_time=fitted)
    assert parse_profile(profile_text(profile), "x").pass_time == fitted


def test_neither_noise_nor_interruptions_tilt_a_fit() -> None:
    """Passes off by 12 %, median; every fiftieth takes ten times as long."""
    truth, rng = PassTime(0.002, 5e-5, 1.5e-4, 3e-7), random.Random(1)
    passes = []
    for number in range(6000):
        batch = rng.randrange(1, 40)
        prompt = rng.choice([0, 0, rng.randrange(16, 512)])
        share = Share(prompt, 0, batch, batch * rng.randrange(50, 900))
        noise = exp(rng.gauss(-0.0162, 0.18)) * (10 if number % 50 == 0 else 1)
        passes.append(MeasuredPass(share, noise * truth.seconds(*share)))
    fit = fit_pass_time(passes)
    for term in ("base", "per_prefill_token", "per_request", "per_kv_token"):
        error = getattr(fit.pass_time, term) / getattr(truth, term) - 1.0
        assert abs(error) < max(0.03, 3 * fit.standard_errors[term]), term
        assert abs(error) < 0.06, term
