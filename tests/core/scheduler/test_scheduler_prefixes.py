"""What the scheduler believes of units' prefix caches, and what packing makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headway.blocks import num_waypoints, waypoint, waypoint_names
from headway.cluster import UnitId, WorkerInfo
from headway.core.scheduler.places import InWindow, Tracked
from headway.core.scheduler.prefixes import MOST_FALSE_CLAIMS, Prefixes
from headway.core.scheduler.settings import SchedulerSettings
from headway.messages import Admission, CachedPrefixes
from headway.policies.dispatch.prefix_hits import Hit
from tests.fakes.scheduler_text import SchedulerHarness, key, make_info, make_request, short_pass

STEP = waypoint(1)


def info_of(worker_id: str, *, units: int = 1, steps: int = 1000, host: int = 0) -> WorkerInfo:
    info = make_info(worker_id, units=units, blocks=steps, block_size=STEP, max_len=100_000)
    return replace(info, num_host_blocks=host)


def index_of(*infos: WorkerInfo) -> Prefixes:
    prefixes = Prefixes()
    for info in infos:
        prefixes.join(info)
    return prefixes


def entry_of(name: int, *parts: tuple[int, int], salt: str = "", adapter: str = "") -> Tracked:
    """A waiting request whose prompt is so many tokens of each kind in turn."""
    tokens = tuple(kind for kind, count in parts for _ in range(count))
    request = replace(make_request(name), prompt_token_ids=tokens, cache_salt=salt, adapter=adapter)
    return Tracked(key(name), f"r{name}", "m", InWindow(), request, len(tokens), 0.0)


def held(prefixes: Prefixes, entry: Tracked, *units: UnitId) -> list[int]:
    """What units hold of a prompt by both ways to ask, which agree."""
    matches = prefixes.matches(entry)
    hits = [prefixes.hit(entry, unit) for unit in units]
    assert hits == [matches.hit(unit) if matches is not None else Hit(0) for unit in units]
    return [hit.num_tokens for hit in hits]


def unit(number: int, worker_id: str = "w") -> UnitId:
    return UnitId(worker_id, number)


def test_a_unit_holds_what_prompts_have_in_common() -> None:
    prefixes = index_of(info_of("w", units=3))
    prefixes.note(entry_of(1, (7, 3 * STEP), (8, 10)), unit(0))
    prefixes.note(entry_of(2, (7, STEP), (9, 2 * STEP)), unit(1))
    asked = entry_of(3, (7, 2 * STEP), (5, 99))
    assert held(prefixes, asked, unit(0), unit(1), unit(2)) == [2 * STEP, STEP, 0]
    matches = prefixes.matches(asked)
    assert matches is not None
    assert (matches.longest, matches.shortest) == (2 * STEP, 0)
    assert matches.holders(9) == [unit(0), unit(1)]
    assert matches.holders(1) == [unit(0)]
    assert prefixes.matches(entry_of(4, (6, 5 * STEP))) is None


def test_a_salt_keeps_beginnings_apart() -> None:
    prefixes, mine, other = index_of(info_of("w")), entry_of(1, (7, 99), salt="a"), (7, 99)
    prefixes.note(mine, unit(0))
    assert held(prefixes, entry_of(2, other), unit(0)) == [0]
    assert held(prefixes, entry_of(3, other, salt="a"), unit(0)) == [STEP]
    assert held(prefixes, entry_of(4, other, salt="a", adapter="sql"), unit(0)) == [0]


def test_the_last_token_is_always_computed() -> None:
    prefixes = index_of(info_of("w"))
    prefixes.note(entry_of(1, (7, 2 * STEP + 1)), unit(0))
    assert held(prefixes, entry_of(2, (7, 2 * STEP)), unit(0)) == [STEP]
    assert held(prefixes, entry_of(3, (7, STEP)), unit(0)) == [0]


def test_a_unit_remembers_as_much_as_its_kv_has_room_for() -> None:
    prefixes = index_of(info_of("w", steps=4))
    for name in range(10):
        prefixes.note(entry_of(name, (name, 2 * STEP + 1)), unit(0))
    asked = [entry_of(99, (name, 2 * STEP + 1)) for name in range(10)]
    assert [n for n in range(10) if held(prefixes, asked[n], unit(0)) != [0]] == [8, 9]


def test_host_memory_remembers_behind_the_device() -> None:
    prefixes = index_of(info_of("w", steps=2, host=6))
    for name in range(4):
        prefixes.note(entry_of(name, (name, 2 * STEP + 1)), unit(0))
    hits = [prefixes.hit(entry_of(99, (name, 2 * STEP + 1)), unit(0)) for name in range(4)]
    assert hits == [Hit(0), Hit(0, 2 * STEP), Hit(0, 2 * STEP), Hit(2 * STEP)]


def test_what_a_worker_held_goes_with_it() -> None:
    prefixes, asked = index_of(info_of("a"), info_of("b")), entry_of(3, (7, STEP + 1))
    for worker_id in ("a", "b"):
        prefixes.note(asked, unit(0, worker_id))
    prefixes.forget("a")
    assert held(prefixes, asked, unit(0, "a"), unit(0, "b")) == [0, STEP]
    prefixes.forget("b")
    assert prefixes.num_names == 0


def test_a_worker_that_takes_no_prompts_for_now_keeps_what_it_holds() -> None:
    prefixes, asked = index_of(info_of("a")), entry_of(3, (7, STEP + 1))
    prefixes.note(asked, unit(0, "a"))
    prefixes.rest("a")
    assert prefixes.matches(asked) is None
    prefixes.join(info_of("a"))
    assert held(prefixes, asked, unit(0, "a")) == [STEP]


def test_what_all_but_a_new_unit_hold_tells_that_unit_apart() -> None:
    infos = [info_of(f"w{number}") for number in range(100)]
    prefixes, asked = index_of(*infos), entry_of(1, (7, STEP + 1))
    for info in infos[:-1]:
        prefixes.note(asked, unit(0, info.worker_id))
    matches = prefixes.matches(asked)
    assert matches is not None
    assert (matches.longest, matches.shortest) == (STEP, 0)
    prefixes.note(asked, unit(0, "w99"))
    matches = prefixes.matches(asked)
    assert matches is not None
    assert matches.shortest == STEP


def test_an_answers_waypoints_are_a_hit_for_the_next_turn() -> None:
    prefixes, first = index_of(info_of("w")), entry_of(1, (7, STEP + 9))
    turn = entry_of(2, (7, STEP + 9), (3, 2 * STEP))
    prefixes.note(first, unit(0))
    assert held(prefixes, turn, unit(0)) == [STEP]
    assert turn.request is not None
    prefixes.note(first, unit(0), waypoint_names(turn.request.prompt_token_ids)[1:])
    assert held(prefixes, turn, unit(0)) == [3 * STEP]


def claim(*tokens: Sequence[int]) -> CachedPrefixes:
    chains = [waypoint_names(each) for each in tokens]
    numbers = [number for chain in chains for number in range(1, len(chain) + 1)]
    return CachedPrefixes(0, tuple(name for chain in chains for name in chain), numbers)


def test_a_snapshot_tells_a_new_leader_what_is_held() -> None:
    info, asked = info_of("w"), entry_of(1, (7, 3 * STEP + 1))
    prefixes = index_of(info)
    prefixes.claim(info, [claim([7] * (2 * STEP + 1))])
    assert held(prefixes, asked, unit(0)) == [2 * STEP]


def test_claims_are_bounded_by_the_kv_and_wrong_ones_are_counted() -> None:
    info = info_of("w", steps=2)
    prefixes = index_of(info)
    prefixes.claim(info, [claim([7] * (5 * STEP + 1)), CachedPrefixes(7, (b"x" * 16,), (1,))])
    assert prefixes.num_bad_reports == 3
    assert held(prefixes, entry_of(1, (7, 9 * STEP)), unit(0)) == [2 * STEP]
    asked = entry_of(2, (7, 9))
    prefixes.admitted(asked, unit(0), Admission(asked.key, 10), 0)
    prefixes.admitted(asked, unit(0), Admission(asked.key, 5, 6), 0)
    assert prefixes.num_bad_reports == 5


def test_a_worker_whose_claims_fail_three_times_has_none_until_it_joins_again() -> None:
    info, kinds = info_of("w"), range(MOST_FALSE_CLAIMS + 2)
    prefixes = index_of(info)
    prefixes.claim(info, [claim([kind] * (STEP + 1)) for kind in kinds])
    for kind in kinds[:MOST_FALSE_CLAIMS]:
        asked = entry_of(kind, (kind, STEP + 1))
        assert held(prefixes, asked, unit(0)) == [STEP]
        prefixes.admitted(asked, unit(0), Admission(asked.key, 0), STEP)
    assert held(prefixes, entry_of(99, (kinds[-1], STEP + 1)), unit(0)) == [0]
    prefixes.claim(info, [claim([5] * (STEP + 1))])
    assert held(prefixes, entry_of(99, (5, STEP + 1)), unit(0)) == [0]
    prefixes.forget("w")
    prefixes.join(info)
    prefixes.claim(info, [claim([5] * (STEP + 1))])
    assert held(prefixes, entry_of(99, (5, STEP + 1)), unit(0)) == [STEP]


@given(
    sent=st.lists(
        st.tuples(st.lists(st.integers(0, 2), max_size=5), st.integers(0, 3)), max_size=30
    ),
    room=st.integers(1, 12),
    asked=st.lists(st.integers(0, 2), max_size=6),
    gone=st.sampled_from(["", "a"]),
)
def test_hits_are_of_prompts_that_were_sent_and_never_more(
    sent: list[tuple[list[int], int]], room: int, asked: list[int], gone: str
) -> None:
    def entry(name: int, kinds: list[int]) -> Tracked:
        return entry_of(name, *((kind, STEP) for kind in kinds), (9, 1))

    prefixes = index_of(info_of("a", units=2, steps=room), info_of("b", units=2, steps=room))
    units = [UnitId(worker_id, number) for worker_id in "ab" for number in range(2)]
    for name, (kinds, number) in enumerate(sent):
        prefixes.note(entry(name, kinds), units[number])
    if gone:
        prefixes.forget(gone)
    for where, num_tokens in zip(units, held(prefixes, entry(1000, asked), *units), strict=True):
        count = num_waypoints(num_tokens)
        assert count <= room
        assert not count or where.worker_id != gone
        assert not count or any(
            kinds[:count] == asked[:count] and units[n] == where for kinds, n in sent
        )


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["note", "note", "claim", "lost", "join", "rest", "forget"]),
            st.integers(0, 2),
            st.sampled_from("ab"),
        ),
        max_size=30,
    )
)
def test_who_holds_a_prompt_differs_with_the_indexs_version_alone(
    steps: list[tuple[str, int, str]],
) -> None:
    infos = {name: info_of(name, steps=5, host=7) for name in "ab"}
    prefixes = index_of(infos["a"])
    asked = [entry_of(n, (7, STEP), (n, 2 * STEP + 1)) for n in range(3)]

    def seen() -> list[object]:
        matches = [prefixes.matches(entry) for entry in asked]
        units = [unit(0, name) for name in "ab"]
        return [
            each and (each.longest, each.shortest, [each.hit(u) for u in units], each.holders(9))
            for each in matches
        ]

    for step, number, name in steps:
        version, before = prefixes.version, seen()
        if step == "note":
            prefixes.note(asked[number], unit(0, name))
        elif step == "claim":
            tokens = asked[number].request
            assert tokens is not None
            prefixes.claim(infos[name], [claim(tokens.prompt_token_ids)])
        elif step == "lost":
            prefixes.lost(unit(0, name), None)
        elif step == "join":
            prefixes.join(infos[name])
        else:
            (prefixes.rest if step == "rest" else prefixes.forget)(name)
        assert seen() == before or prefixes.version != version


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
