"""Prompts of simulated requests, and what follows from their being different."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.cluster import Role
from headway.core.scheduler.settings import SchedulerSettings
from headway.sim.cluster import ClusterSpec, SimRequest
from headway.sim.prompts import HASHED_TOKENS, prompt_tokens
from tests.fakes.sim_clusters import instance, run


def test_no_two_requests_share_a_token_that_no_trace_names() -> None:
    one, other = (prompt_tokens(number, 2000) for number in (0, 1))
    assert (len(one), len(set(one) & set(other))) == (2000, 0)


def test_blocks_of_equal_names_hold_equal_tokens() -> None:
    one, other = prompt_tokens(0, 1500, (7, 8)), prompt_tokens(1, 1500, (7, 9))
    assert list(one)[:HASHED_TOKENS] == list(other)[:HASHED_TOKENS]
    assert not set(one[HASHED_TOKENS:]) & set(other[HASHED_TOKENS:])
    assert len(set(one)) == 1500


@given(st.integers(1, 3000), st.integers(0, 3000), st.integers(0, 3000), st.integers(0, 8))
def test_any_part_of_a_prompt_is_that_part_of_all_its_tokens(
    num_tokens: int, start: int, stop: int, num_hashes: int
) -> None:
    prompt = prompt_tokens(3, num_tokens, tuple(range(10, 10 + num_hashes)))
    whole = list(prompt)
    assert len(whole) == len(prompt) == num_tokens
    assert list(prompt[start:stop]) == whole[start:stop]
    assert prompt[num_tokens - 1] == prompt[-1] == whole[-1]


def _talk(number: int) -> tuple[int, ...]:
    return tuple(range(10 * number, 10 * number + 4))


def test_requests_with_one_beginning_are_packed_where_it_is_cached() -> None:
    """Three talks over four units: a turn goes where the last one was, if anybody looks."""
    kind = instance(Role.UNIFIED, num_units=4, kv_capacity_tokens=40_000)

    def hits(looks: bool) -> int:
        requests = [
            SimRequest(f"r{turn}{n}", 1.0 + turn, 2048, 4, prefix_hashes=_talk((turn + n) % 3))
            for turn in range(4)
            for n in range(3)
        ]
        scheduler = SchedulerSettings(prefix_hits=looks)
        _, cluster = run(ClusterSpec(((kind, 1),), scheduler=scheduler), requests)
        counts = (w.core.prefix_counts for w in cluster.workers)
        return sum(each.num_hit_tokens for each in counts)

    assert hits(True) == 9 * 2032 > hits(False)


def test_what_one_request_generates_is_cached_for_the_next_turn() -> None:
    first = SimRequest("r0", 1.0, 1024, 1024, prefix_hashes=(1, 2, 3, 4))

    def ttft(hashes: tuple[int, ...]) -> float:
        second = SimRequest("r1", 100.0, 2048, 4, prefix_hashes=hashes)
        records, _ = run(ClusterSpec(((instance(Role.UNIFIED), 1),)), [first, second])
        return records[1].ttft or 0.0

    assert ttft((1, 2, 3, 4)) < 0.5 * ttft((1, 2, 8, 9)) < ttft((6, 7, 8, 9))
