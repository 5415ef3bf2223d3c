"""TokenScale: token velocities, their buckets, and the pass times behind them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cost.buckets import BUCKET_NAMES, NUM_BUCKETS, Buckets
from headway.cost.pass_time import PassTime
from headway.cost.profile import load_profile
from headway.cost.velocity import (
    Memory,
    convertible_chunk,
    convertible_velocity,
    decode_velocities,
    decode_velocity,
    prefill_velocity,
)
from headway.errors import HeadwayError
from headway.messages import PassWork
from headway.policies.scaling.learned import (
    LearnedParams,
    LearnedVelocity,
    VelocitySample,
    velocity_sample,
)
from headway.policies.scaling.protocol import WorkSample
from tests.fakes.pass_times import TRUE

TABLE_2 = (23535, 8146, 5138, 33106, 9794, 5766, 39551, 11310, 6495)


# --- buckets ------------------------------------------------------------------------------


def test_there_are_nine_buckets_from_short_short_to_long_long() -> None:
    assert BUCKET_NAMES == ("S-S", "S-M", "S-L", "M-S", "M-M", "M-L", "L-S", "L-M", "L-L")


@pytest.mark.parametrize("index", range(NUM_BUCKETS))
def test_the_lengths_that_stand_for_a_bucket_are_in_it(index: int) -> None:
    assert Buckets().of(*Buckets().lengths(index)) == index


@pytest.mark.parametrize(
    ("num_input", "num_output", "name"),
    [
        (1, 1, "S-S"),
        (512, 100, "S-S"),  # the geometric mean of 256 and 1024 is the shorter one's
        (513, 100, "M-S"),
        (2896, 100, "M-S"),
        (2897, 100, "L-S"),
        (10**6, 10**6, "L-L"),
        (256, 187.0, "S-S"),
        (256, 187.1, "S-M"),
        (256, 463, "S-L"),
    ],
)
def test_a_length_belongs_to_the_nearest_edge_in_log_space(
    num_input: int, num_output: float, name: str
) -> None:
    assert BUCKET_NAMES[Buckets().of(num_input, num_output)] == name


def test_an_output_of_which_nothing_is_known_is_medium() -> None:
    assert BUCKET_NAMES[Buckets().of(8192, 0)] == "L-M"


def test_edges_are_configurable() -> None:
    buckets = Buckets((10, 100, 1000), (5, 50, 500))
    assert BUCKET_NAMES[buckets.of(99, 6)] == "M-S"


@pytest.mark.parametrize("edges", [(1, 2), (1, 2, 2), (3, 2, 1), (0, 1, 2), (1, 2, 3, 4)])
def test_edges_that_are_no_three_ascending_lengths_are_refused(edges: tuple[int, ...]) -> None:
    with pytest.raises(HeadwayError, match="3 ascending"):
        Buckets(edges)


# --- velocities ---------------------------------------------------------------------------


def test_prefill_velocity_is_full_chunks_on_every_unit() -> None:
    memory = Memory(1, chunk_tokens=3072, max_batch=1, num_units=8)
    seconds = TRUE.seconds(3072, 0, 0, 0)
    assert prefill_velocity(TRUE, memory) == pytest.approx(8 * 3072 / seconds)


def test_decode_velocity_counts_tokens_of_completed_requests_not_generated_ones() -> None:
    memory = Memory(100_000, 1, max_batch=10)
    seconds = TRUE.seconds(0, 0, 10, 10 * (1000 + 50))
    assert decode_velocity(TRUE, memory, 1000, 100) == pytest.approx(10 * 1100 / (100 * seconds))


def test_decode_velocity_is_bound_by_the_memory_that_whole_requests_need() -> None:
    memory = Memory(11_000, 1, max_batch=1000)
    assert decode_velocity(TRUE, memory, 1000, 100) == decode_velocity(
        TRUE, Memory(1 << 40, 1, max_batch=10), 1000, 100
    )


def test_longer_outputs_release_memory_more_slowly() -> None:
    velocities = load_profile("llama-8b-a100").decode_tokens_per_s
    for row in range(3):
        short, medium, long = velocities[3 * row : 3 * row + 3]
        assert short > medium > long


def test_the_a100_profile_has_the_velocities_of_table_2() -> None:
    profile = load_profile("llama-8b-a100")
    assert profile.decode_tokens_per_s == TABLE_2
    assert profile.prefill_tokens_per_s == 14_000


def test_the_pass_time_model_gives_table_2_within_31_percent() -> None:
    profile = load_profile("llama-8b-a100")
    found = decode_velocities(profile.pass_time, profile.memory, profile.buckets)
    assert found == pytest.approx(TABLE_2, rel=0.31)


def test_the_stage_before_decode_is_as_fast_as_the_slower_of_prefill_and_network() -> None:
    slow_network = load_profile("qwen-72b-tp4-a100")
    assert slow_network.prefill_tokens_per_s is not None
    assert slow_network.network_tokens_per_s is not None
    assert slow_network.prefill_velocity() == min(
        slow_network.prefill_tokens_per_s, slow_network.network_tokens_per_s
    )


# --- what a profile that was measured has of its pass times --------------------------------


def test_long_prompts_are_slower_by_what_their_chunks_read() -> None:
    memory = Memory(1 << 20, 512, max_batch=256)
    even = replace(TRUE, per_prefill_context=0.0)
    full = prefill_velocity(even, memory)
    assert prefill_velocity(even, memory, (512, 1024, 8192)) == pytest.approx(full)
    assert prefill_velocity(even, memory, (256,)) < full
    two_chunks = 2 * TRUE.seconds(512, 0, 0, 0) + TRUE.per_prefill_context * 512 * 512
    assert prefill_velocity(TRUE, memory, (1024,)) == pytest.approx(1024 / two_chunks)


def test_the_measured_profiles_chunk_is_what_its_pass_times_leave_of_the_tpot() -> None:
    profile = load_profile("llama-8b-h100-measured")
    chunk = convertible_chunk(profile.pass_time, profile.memory, 1024, 350, 0.1)
    assert chunk == (profile.convertible_chunk_tokens, profile.max_batch)
    assert profile.convertible_tokens_per_s == pytest.approx(convertible_velocity(*chunk, 0.1))


@given(st.floats(0.001, 1.0), st.integers(64, 4096))
def test_the_chunk_is_the_largest_that_keeps_the_slo_beside_decoding(
    slo: float, chunk_tokens: int
) -> None:
    memory = Memory(1 << 16, chunk_tokens, max_batch=64)
    fitting = convertible_chunk(TRUE, memory, 1024, 350, slo)
    if fitting is None:
        assert TRUE.seconds(16, 0, 1, 1199) > slo
        return
    num_tokens, batch = fitting

    def seconds(num_prompt: int) -> float:
        context = num_prompt * max(0, num_prompt - chunk_tokens) / 2
        return TRUE.seconds(num_prompt, context, batch, batch * 1199)

    assert seconds(num_tokens - batch) <= slo < seconds(num_tokens - batch + 1)


@pytest.mark.parametrize(
    ("most", "sizes"), [(2048, (256, 1024, 1438)), (1200, (256, 388, 590)), (100_000, None)]
)
def test_a_long_input_is_cut_to_what_the_model_takes_and_a_medium_one_lies_halfway(
    most: int, sizes: tuple[int, ...] | None
) -> None:
    assert Buckets().within(most).input_tokens == (sizes or Buckets().input_tokens)


# --- online -------------------------------------------------------------------------------


def sample(worker_id: str, ratio: float, stage: str = "prefill") -> VelocitySample:
    return VelocitySample(worker_id, stage, ratio * 1000.0, 1000.0)


def test_the_profile_is_the_prior() -> None:
    assert LearnedVelocity().factor("decode") == 1.0


def test_live_passes_correct_a_velocity_slowly() -> None:
    learned = LearnedVelocity(LearnedParams(weight=0.01, num_warm_up=0))
    learned.observe(sample("w", 0.5))
    assert learned.factor("prefill") == pytest.approx(0.995)
    for _ in range(2000):
        learned.observe(sample("w", 0.5))
    assert learned.factor("prefill") == pytest.approx(0.5)
    assert learned.factor("decode") == 1.0


def test_the_first_passes_of_a_fresh_worker_are_left_out() -> None:
    learned = LearnedVelocity(LearnedParams(weight=1.0, num_warm_up=3))
    for worker_id in ("a", "b"):
        for _ in range(3):
            learned.observe(sample(worker_id, 0.3))
    assert learned.factor("prefill") == 1.0
    learned.observe(sample("a", 0.8))
    assert learned.factor("prefill") == pytest.approx(0.8)


def test_passes_told_together_count_as_if_they_were_told_one_by_one() -> None:
    one, together = (LearnedVelocity(LearnedParams(weight=0.01, num_warm_up=0)) for _ in "ab")
    for _ in range(50):
        one.observe(sample("w", 0.5))
    together.observe(replace(sample("w", 0.5), num_passes=50))
    assert together.factor("prefill") == pytest.approx(one.factor("prefill"))


@given(
    work=st.builds(
        PassWork,
        num_passes=st.integers(1, 1000),
        seconds=st.just(0.0),
        prefill_tokens=st.integers(0, 10**6),
        prefill_context=st.integers(0, 10**9),
        batch=st.integers(1, 10**5),
        kv_tokens=st.integers(0, 10**8),
    ),
    slower=st.floats(0.1, 10),
)
def test_a_device_that_is_so_much_slower_than_its_profile_is_seen_so(
    work: PassWork, slower: float
) -> None:
    pass_time = PassTime(0.01, 1e-5, 1e-4, 1e-8, 1e-9)
    linear = (work.prefill_tokens, work.prefill_context, work.batch, work.kv_tokens)
    profiled = (work.num_passes - 1) * pass_time.base + pass_time.seconds(*linear)
    slow = replace(work, seconds=profiled * slower)
    found = velocity_sample(WorkSample("w", "decode", slow), pass_time)
    ratio = found.profiled_tokens_per_s / found.measured_tokens_per_s
    assert ratio == pytest.approx(slower)
    assert found.num_passes == work.num_passes


def test_a_drift_of_over_20_percent_is_told() -> None:
    learned = LearnedVelocity(LearnedParams(weight=1.0, num_warm_up=0))
    learned.observe(sample("w", 0.81))
    assert learned.drifts() == []
    learned.observe(sample("w", 0.79))
    assert learned.drifts() == ["prefill velocity is -21% off its profile: measure it again"]


@pytest.mark.parametrize("ratio", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_sample_that_is_no_velocity_is_dropped_and_counted(ratio: float) -> None:
    learned = LearnedVelocity(LearnedParams(weight=1.0, num_warm_up=0))
    learned.observe(sample("w", ratio))
    assert (learned.factor("prefill"), learned.num_dropped) == (1.0, 1)
