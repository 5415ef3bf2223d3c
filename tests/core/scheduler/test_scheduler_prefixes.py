"""What the scheduler believes of units' prefix caches, and what packing makes of it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headway.cluster import UnitId
from headway.core.scheduler.places import InWindow, Tracked
from headway.core.scheduler.prefixes import GRANULE, MAX_HOLDERS, Prefixes
from headway.core.scheduler.settings import SchedulerSettings
from tests.fakes.scheduler_text import SchedulerHarness, key, make_info, make_request, short_pass

ENDLESS = 1_000_000


def entry_of(name: int, *parts: tuple[int, int]) -> Tracked:
    """A waiting request whose prompt is so many tokens of each kind in turn."""
    tokens = tuple(kind for kind, count in parts for _ in range(count))
    request = replace(make_request(name), prompt_token_ids=tokens)
    return Tracked(key(name), f"r{name}", "m", InWindow(), request, len(tokens), 0.0)


def unit(number: int, worker_id: str = "w") -> UnitId:
    return UnitId(worker_id, number)


def test_a_unit_holds_what_prompts_have_in_common() -> None:
    prefixes = Prefixes()
    prefixes.sent(entry_of(1, (7, 3 * GRANULE), (8, 10)), unit(0), ENDLESS)
    prefixes.sent(entry_of(2, (7, GRANULE), (9, 2 * GRANULE)), unit(1), ENDLESS)
    asked = entry_of(3, (7, 2 * GRANULE), (5, 99))
    assert prefixes.hits(asked) == {unit(0): 2 * GRANULE, unit(1): GRANULE}
    assert prefixes.hits(entry_of(4, (6, 5 * GRANULE))) == {}


def test_a_salt_keeps_beginnings_apart() -> None:
    prefixes, mine, other = Prefixes(), entry_of(1, (7, 99)), entry_of(2, (7, 99))
    assert mine.request is not None
    mine.request = replace(mine.request, cache_salt="a")
    prefixes.sent(mine, unit(0), ENDLESS)
    assert prefixes.hits(other) == {}
    assert prefixes.hits(mine) == {unit(0): GRANULE}


def test_the_last_token_is_always_computed() -> None:
    prefixes = Prefixes()
    prefixes.sent(entry_of(1, (7, 2 * GRANULE)), unit(0), ENDLESS)
    assert prefixes.hits(entry_of(2, (7, 2 * GRANULE))) == {unit(0): GRANULE}
    assert prefixes.hits(entry_of(3, (7, GRANULE))) == {}


def test_a_unit_remembers_as_much_as_its_kv_has_room_for() -> None:
    prefixes = Prefixes()
    for name in range(10):
        prefixes.sent(entry_of(name, (name, 2 * GRANULE + 1)), unit(0), 4 * GRANULE)
    held = [name for name in range(10) if prefixes.hits(entry_of(99, (name, 2 * GRANULE + 1)))]
    assert held == [8, 9]


def test_what_a_worker_held_goes_with_it() -> None:
    prefixes = Prefixes()
    asked = entry_of(3, (7, GRANULE + 1))
    for worker_id in ("a", "b"):
        prefixes.sent(asked, unit(0, worker_id), ENDLESS)
    prefixes.forget("a")
    assert prefixes.hits(asked) == {unit(0, "b"): GRANULE}


def test_a_beginning_that_everybody_holds_is_no_reason() -> None:
    prefixes = Prefixes()
    asked = entry_of(1, (7, GRANULE), (8, GRANULE + 1))
    for number in range(MAX_HOLDERS + 1):
        prefixes.sent(entry_of(2, (7, GRANULE + 1)), unit(number), ENDLESS)
    prefixes.sent(asked, unit(3), ENDLESS)
    assert prefixes.hits(asked) == {unit(3): 2 * GRANULE}


@given(
    sent=st.lists(
        st.tuples(st.lists(st.integers(0, 2), max_size=5), st.integers(0, 2), st.integers(0, 6)),
        max_size=30,
    ),
    asked=st.lists(st.integers(0, 2), max_size=6),
    gone=st.sampled_from(["", "w"]),
)
def test_hits_are_of_prompts_that_were_sent_and_never_more(
    sent: list[tuple[list[int], int, int]], asked: list[int], gone: str
) -> None:
    def entry(name: int, kinds: list[int]) -> Tracked:
        return entry_of(name, *((kind, GRANULE) for kind in kinds), (9, 1))

    prefixes = Prefixes()
    for name, (kinds, number, room) in enumerate(sent):
        prefixes.sent(entry(name, kinds), unit(number), room * GRANULE)
    if gone:
        prefixes.forget(gone)
    hits = prefixes.hits(entry(1000, asked))
    for where, num_tokens in hits.items():
        count = num_tokens // GRANULE
        assert not gone
        assert any(k[:count] == asked[:count] and unit(n) == where for k, n, _ in sent)


def test_a_prompt_goes_where_its_beginning_is() -> None:
    settings = replace(short_pass(), prefix_hits=True)
    assert dispatched_to(settings) == [0, 0]
    assert dispatched_to(replace(settings, prefix_hits=False)) == [0, 1]


def dispatched_to(settings: SchedulerSettings) -> list[int]:
    """Where two prompts with a long beginning in common are prefilled, one after the other."""
    harness = SchedulerHarness(settings)
    harness.connect(make_info("w", units=2, chunk=1000, blocks=1000))
    harness.submit(1, 500)
    harness.wait(1.0)
    harness.accept("w")
    harness.end_forward("w", after=0.1, queued=1)  # unit 0 owes a little: unit 1 is emptier
    harness.submit(2, 520)
    harness.wait(1.0)
    found = [d.batches for d in harness.dispatches("w")]
    return [batch.unit for batches in found for batch in batches]
