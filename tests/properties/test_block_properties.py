"""The pool's books, with shared and cached blocks: nothing is lost, freed twice or overwritten."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.blocks import (
    BlockPool,
    PrefixNamer,
    block_names,
    blocks_for,
    num_waypoints,
    waypoint,
    waypoint_names,
)

SIZE = 4
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=40)


def test_a_chain_names_a_block_and_all_before_it() -> None:
    assert block_names([1, 2, 3, 4, 5], 2) == block_names([1, 2, 3, 4, 6], 2)
    first, second = block_names([1, 2, 1, 2], 2)
    assert first != second
    assert block_names([9, 9, 3, 4], 2)[1] != block_names([1, 2, 3, 4], 2)[1]
    assert block_names([1], 2) == []


@given(size=st.integers(1, 700), num_tokens=st.integers(0, 6000), salt=st.sampled_from(["", "s"]))
def test_a_block_that_ends_at_a_waypoint_has_its_name(
    size: int, num_tokens: int, salt: str
) -> None:
    tokens = [n * 7919 % 1000 for n in range(num_tokens)]
    names = block_names(tokens, size, PrefixNamer(salt))
    marks = waypoint_names([*tokens, 0], salt)
    assert len(marks) == num_waypoints(num_tokens)
    for number, name in enumerate(marks, start=1):
        if waypoint(number) % size == 0:
            assert names[waypoint(number) // size - 1] == name
    assert len({*names, *marks}) == len(
        {*range(size, num_tokens + 1, size)}
        | {waypoint(number) for number in range(1, len(marks) + 1)}
    )


@given(st.lists(st.integers(0, 3), max_size=300), st.lists(st.integers(1, 90), max_size=20))
def test_a_name_does_not_depend_on_how_its_tokens_came(tokens: list[int], cuts: list[int]) -> None:
    whole, parts, at = PrefixNamer(), PrefixNamer(), 0
    for cut in cuts:
        parts.advance(tokens[at : at + cut])
        at += cut
    assert whole.advance(tokens) == parts.advance(tokens[at:])
    assert PrefixNamer("salt").advance(tokens) != whole.advance([])


def test_a_prefix_is_found_again_after_its_request_has_ended() -> None:
    pool, table = BlockPool(8, SIZE), list[int]()
    hashes = block_names(range(12), SIZE)
    assert pool.grow(table, 12)
    pool.cache(table, hashes)
    kept = list(table)
    pool.release(table)
    assert pool.num_free == 8
    assert pool.adopt(table, [*hashes, "more"]) == 3
    assert table == kept
    assert pool.num_free == 5


def test_the_least_recently_used_prefix_makes_room_first() -> None:
    pool = BlockPool(2, SIZE)
    for name in ("old", "new"):
        table: list[int] = []
        pool.grow(table, SIZE)
        pool.cache(table, [name])
        pool.release(table)
    pool.grow([], SIZE)
    assert (pool.count_cached(["old"]), pool.count_cached(["new"])) == (0, 1)


def kept(pool: BlockPool, tokens: list[int]) -> list[int]:
    """A chain over these tokens, cached, and still held."""
    table, hashes = list[int](), block_names(tokens, SIZE)
    pool.adopt(table, hashes)
    assert pool.grow(table, len(tokens))
    pool.cache(table, hashes)
    return table


def test_the_end_of_a_chain_makes_room_before_its_beginning() -> None:
    pool, tokens = BlockPool(4, SIZE), list(range(12))
    pool.release(kept(pool, tokens))
    for num_left in (2, 1, 0):
        pool.promise(4 - num_left)
        assert pool.count_cached(block_names(tokens, SIZE)) == num_left
        pool.promise(0)


def test_a_use_makes_a_prefix_young_again() -> None:
    pool = BlockPool(2, SIZE)
    for tokens in ([1] * SIZE, [2] * SIZE, [1] * SIZE):
        pool.release(kept(pool, tokens))
    pool.promise(1)
    names = [block_names([token] * SIZE, SIZE) for token in (1, 2)]
    assert [pool.count_cached(name) for name in names] == [1, 0]


def test_promised_blocks_are_nobody_elses() -> None:
    pool, table, other = BlockPool(5, SIZE), list[int](), list[int]()
    pool.promise(3)
    assert not pool.grow(table, 3 * SIZE)
    assert pool.grow(table, 2 * SIZE)
    pool.redeem(other, 3 * SIZE)
    assert sorted(table + other) == list(range(5))


def test_a_name_stays_with_the_block_that_has_it_first() -> None:
    """Two requests compute one prompt at once: the second copy is nobody's cache."""
    pool, tokens = BlockPool(4, SIZE), [1] * SIZE
    first, second, (name,) = list[int](), list[int](), block_names(tokens, SIZE)
    for table in (first, second):
        assert pool.grow(table, SIZE)
    (block,) = first
    pool.cache(first, [name])
    pool.cache(second, [name])
    assert pool.find(name) == block
    pool.release(first)
    pool.release(second)
    pool.promise(4)
    assert pool.find(name) is None


def test_what_only_a_session_that_is_over_has_used_makes_room_first() -> None:
    pool, system = BlockPool(8, SIZE), [0] * SIZE
    turns = [[*system, *[1] * 4], [*system, *[1] * 8]]
    pool.release(kept(pool, [*system, *[2] * 8]))
    pool.release(kept(pool, turns[0]))
    pool.retire(kept(pool, turns[1]))
    pool.promise(3)  # of five blocks, three are free
    assert pool.count_cached(block_names(turns[1], SIZE)) == 3
    pool.promise(4)
    assert pool.count_cached(block_names(turns[1], SIZE)) == 2
    pool.promise(5)
    assert pool.count_cached(block_names(turns[1], SIZE)) == 1
    pool.promise(7)
    assert pool.count_cached(block_names([*system, *[2] * 8], SIZE)) == 1


def test_blocks_of_a_session_that_is_over_stay_with_who_uses_them() -> None:
    pool, tokens = BlockPool(4, SIZE), [1] * 8
    first, second = kept(pool, tokens), kept(pool, tokens)
    assert first == second
    pool.retire(first)
    assert pool.num_free == 2
    pool.promise(2)
    assert pool.count_cached(block_names(tokens, SIZE)) == 2


def test_a_table_that_holds_blocks_cannot_begin_with_cached_ones() -> None:
    pool, table = BlockPool(2, SIZE), list[int]()
    pool.grow(table, 1)
    with pytest.raises(ValueError, match="empty table"):
        pool.adopt(table, [])


@given(steps=st.lists(st.tuples(st.booleans(), PROMPTS, st.integers(0, 9)), max_size=40))
def test_every_block_is_referred_to_free_or_cached_and_holds_what_its_hash_says(
    steps: list[tuple[bool, list[int], int]],
) -> None:
    pool = BlockPool(12, SIZE, first=100)
    tables: list[tuple[list[int], list[int]]] = []
    contents: dict[int, tuple[int, ...]] = {}
    for arrives, prompt, which in steps:
        if arrives:
            table: list[int] = []
            hashes = block_names(prompt, SIZE)
            num_cached = pool.adopt(table, hashes)
            for n, block in enumerate(table):
                assert contents[block] == tuple(prompt[: (n + 1) * SIZE])
            if not pool.grow(table, len(prompt)):
                pool.release(table)
                continue
            for n in range(num_cached, len(hashes)):
                contents[table[n]] = tuple(prompt[: (n + 1) * SIZE])
            for block in table[len(hashes) :]:
                contents.pop(block, None)
            pool.cache(table, hashes)
            tables.append((table, prompt))
        elif tables:
            pool.release(tables.pop(which % len(tables))[0])
        used = Counter(block for table, _ in tables for block in table)
        assert pool.num_free == 12 - len(used)
        for table, prompt in tables:
            assert len(table) == blocks_for(len(prompt), SIZE)
            assert pool.num_own(table) <= sum(used[block] == 1 for block in table)
    for table, _ in tables:
        pool.release(table)
    assert pool.num_free == 12
