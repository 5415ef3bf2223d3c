"""TokenScale, section IV-D: what a convertible decoder may prefill, and the memory for it.

"The scheduler prioritizes decode requests over prefill tasks to ensure that decoding is not
preempted": restricted chunked prefill.
"""

from __future__ import annotations

import pytest

from headway.cluster import Role
from headway.cost.profile import load_profile
from headway.cost.velocity import convertible_velocity, reserved_tokens, takes_decode
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.batching.fcfs import Fcfs
from headway.policies.batching.pascal import Pascal
from tests.fakes.plans import Planned, make_planned, names

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
    convertible = A100.in_role(Role.CONVERTIBLE)
    assert convertible.chunk_tokens == A100.convertible_chunk_tokens
    assert convertible.kv_capacity_tokens == A100.kv_capacity_tokens
    with pytest.raises(HeadwayError, match="has no convertible_chunk_tokens"):
        load_profile("deepseek-v3-h800-decode-dp32").in_role(Role.CONVERTIBLE)


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


# --- restricted chunked prefill -----------------------------------------------------------


def beside_a_reader(planned: Planned) -> None:
    """Someone decodes, and two long prompts come that any order may put first."""
    planned.come(1, 4, 40, arrival_at=5.0)
    planned.step()
    planned.come(2, 60, 2, arrival_at=1.0)
    planned.come(3, 60, 2, arrival_at=9.0)


@pytest.mark.parametrize("name", registry.REGISTRY["batching"])
def test_decoding_is_in_every_pass_and_prompts_get_the_rest_of_the_chunk(name: str) -> None:
    policy = registry.make("batching", name)
    planned = make_planned(policy, blocks=100, chunk=16, role=Role.CONVERTIBLE)
    beside_a_reader(planned)
    sizes: list[int] = []
    for _ in range(8):  # 120 tokens of prompts, beside the reader
        items = planned.step()
        assert 1 in names(items)
        sizes.append(sum(len(item.token_ids) for item in items))
    assert sizes == [16] * 8
    planned.finish()


def test_elsewhere_the_policy_decides_between_them() -> None:
    planned = make_planned(Fcfs(), blocks=100, chunk=16)
    beside_a_reader(planned)
    assert [names(planned.step()) for _ in range(3)] == [[2]] * 3


def test_a_prompt_takes_no_blocks_from_who_decodes() -> None:
    """Under PASCAL a prompt comes before an answer, and preempts it elsewhere."""
    for role, first in ((Role.UNIFIED, [2]), (Role.CONVERTIBLE, [1])):
        planned = make_planned(Pascal(), blocks=8, chunk=64, role=role)
        planned.come(1, 16, 9)
        planned.step(3)
        planned.come(2, 20, 2)  # five blocks, of which four are free
        assert names(planned.step()) == first
        planned.finish()


def test_who_decodes_takes_blocks_from_prompts_and_not_from_each_other() -> None:
    planned = make_planned(Fcfs(), blocks=6, chunk=3, role=Role.CONVERTIBLE)
    planned.come(2, 3, 12, arrival_at=2.0)
    planned.step()
    planned.come(1, 16, 2, arrival_at=1.0)
    while not planned.ended:  # it outgrows its two blocks before the prompt is computed
        assert names(planned.step())[0] == 2
    planned.finish()
    assert [(s.key.stream_id, s.num_preemptions) for s in planned.ended] == [(2, 0), (1, 1)]
