"""What one client may hold of a resource that all share, and whose job is next."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.core.gateway.shares import Bound, Charge, Place, Places, Turns
from headway.errors import Code


def bound(capacity: int = 100, share: float = 0.8) -> Bound:
    return Bound("apples", capacity, share, "--max-apples")


def fill(apples: Bound, client: str, amount: int = 1) -> int:
    """Take until the client may not; return what it holds."""
    while apples.take(client, amount):
        pass
    return apples.held_by(client)


def test_one_client_alone_may_hold_its_share_and_the_next_finds_room() -> None:
    apples = bound()
    assert fill(apples, "a") == 80
    assert fill(apples, "b") == 16
    assert fill(apples, "c") > 0
    apples.give_back("a", 80)
    assert fill(apples, "b") > 16


def test_a_small_resource_is_not_made_useless_by_shares() -> None:
    assert fill(bound(1), "a") == 1
    assert fill(bound(2), "a") == 2


def test_without_shares_the_capacity_is_the_only_bound() -> None:
    apples = bound(share=1.0)
    assert fill(apples, "a", 7) == 98
    assert not apples.take("b", 3)
    assert apples.take("b", 2)


def test_a_large_amount_counts_whole() -> None:
    apples = bound(1000)
    assert fill(apples, "a", 128) == 768
    assert apples.take("b", 128)


def test_nothing_is_taken_and_given_back_any_number_of_times() -> None:
    apples = bound()
    assert apples.take("a", 0)
    assert apples.take("a", 0)
    apples.give_back("a", 0)
    apples.give_back("a", 0)
    assert apples.held_by("a") == 0


def test_a_refusal_names_client_value_limit_flag_and_way_out() -> None:
    apples = bound()
    fill(apples, "key 'a'")
    error = apples.refusal("key 'a'", 128, retry_after=3.0)
    assert error.code is Code.RESOURCE_EXHAUSTED
    assert error.retry_after == 3.0
    for said in ("key 'a' has 80 apples", "128 more", "80 of 100", "--max-apples", "in 3 s"):
        assert said in error.message


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 40), st.booleans())))
def test_nothing_is_lost_and_a_newcomer_finds_room_unless_it_is_given_all(
    steps: list[tuple[str, int, bool]],
) -> None:
    apples = bound()
    held: dict[str, list[int]] = {}
    for client, amount, gives_back in steps:
        if gives_back and held.get(client):
            apples.give_back(client, held[client].pop())
        elif apples.take(client, amount):
            held.setdefault(client, []).append(amount)
        assert apples.num_taken == sum(sum(amounts) for amounts in held.values()) <= 100
        assert apples.has_room("newcomer") == (apples.num_taken < 100)
    for client, amounts in held.items():
        for amount in amounts:
            apples.give_back(client, amount)
    assert apples.num_taken == 0


def test_a_charge_replaces_the_one_before_it() -> None:
    apples = bound()
    charge, other = Charge(apples), Charge(apples)
    assert charge.change("a", 60)
    assert charge.change("a", 70)
    assert not other.change("a", 20)
    assert other.change("b", 20)
    assert charge.change("b", 20)
    assert (apples.held_by("a"), apples.held_by("b"), apples.num_taken) == (0, 40, 40)
    assert charge.change("", 0)
    assert not other.change("b", 90)
    assert apples.num_taken == 0


def test_a_call_takes_all_its_places_or_none() -> None:
    places = Places(bound(20, 1.0), bound(10, 1.0), bound())
    assert places.take("a", 11) is places.open
    assert places.take("a", 21) is places.waiting
    assert (places.waiting.num_taken, places.open.num_taken) == (0, 0)
    assert places.full("a") is None
    assert places.take("a", 10) is None
    assert places.full("a") is places.open
    taken = [Place(places, "a") for _ in range(10)]
    for place in (taken[0], taken[0], taken[1]):
        place.begin()
    assert (places.waiting.num_taken, places.open.num_taken) == (8, 10)
    for place in (*taken, taken[0]):
        place.end()
    assert (places.waiting.num_taken, places.open.num_taken) == (0, 0)


def test_a_call_is_charged_for_its_masks_until_its_outputs_end() -> None:
    places = Places(bound(20, 1.0), bound(20, 1.0), bound(100, 0.5))
    assert places.take("a", 2, 40) is None
    assert places.take("a", 2, 40) is places.masks
    assert (places.waiting.num_taken, places.open.num_taken) == (2, 2)
    for place in [Place(places, "a", 20) for _ in range(2)]:
        place.end()
        place.end()
    assert (places.masks.num_taken, places.open.num_taken) == (0, 0)


def test_what_no_client_could_ever_have_is_refused_for_good() -> None:
    masks = Bound("ms of masks", 100, 0.8, "--most", "fewer outputs")
    assert masks.take("a", 80)
    later = masks.refusal("b", 80, retry_after=2.0)
    assert (later.code, later.retry_after) == (Code.RESOURCE_EXHAUSTED, 2.0)
    never = masks.refusal("b", 81, retry_after=2.0)
    assert never.code is Code.INVALID_ARGUMENT
    assert "81 ms of masks" in never.message
    assert "80 of 100 (--most): ask for fewer outputs" in never.message


def test_clients_take_turns() -> None:
    turns: Turns[str] = Turns()
    for job in ("a1", "a2", "a3", "b1", "b2", "c1"):
        turns.add(job[0], job, long=False)
    assert [turns.next(1) for _ in range(7)] == ["a1", "b1", "c1", "a2", "b2", "a3", None]


def test_the_last_thread_is_for_short_jobs() -> None:
    turns: Turns[str] = Turns()
    turns.add("a", "long", long=True)
    turns.add("b", "short", long=False)
    assert turns.next(0) is None
    assert turns.next(1) == "short"
    assert turns.next(1) is None
    assert turns.next(2) == "long"
