"""What the console shows: rows of requests, cards of workers, figures, and changes."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cluster import Role
from headway.console.conversations import MOST_SESSIONS, sessions_of
from headway.console.fleet import AHEAD, REMEMBERED, MemberSeen, Roll, card_of, kv_ahead
from headway.console.frame import cluster_of, promises_of, rows_of
from headway.console.patch import apply_patch, merge_patch
from headway.console.recent import COLUMNS, HISTORY, EndedRequest, RecentRequests
from headway.core.gateway.core import GatewayCore
from headway.core.gateway.rows import RowQuery, RowSearch
from headway.messages import TokenBatch, UsedConstant
from headway.picture import NO_PICTURE, ClusterPicture, HeldPicture, MovePicture, WorkerPicture
from headway.request import FinishReason, Request
from headway.service_class import ServiceClass, Standing
from tests.fakes.gateway_core import gateway, opened, place, requests_in, submit, tokens

# --- changes --------------------------------------------------------------------------

LEAVES = st.one_of(st.booleans(), st.integers(-3, 3), st.text(max_size=2), st.lists(st.integers()))
OBJECTS = st.recursive(
    st.dictionaries(st.sampled_from("abcd"), LEAVES, max_size=4),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), st.one_of(LEAVES, inner), max_size=4),
    max_leaves=12,
)


@given(OBJECTS, OBJECTS)
def test_a_patch_makes_the_one_frame_of_the_other(before: Any, after: Any) -> None:
    assert apply_patch(before, merge_patch(before, after)) == after
    assert merge_patch(after, after) == {}


# --- rows -----------------------------------------------------------------------------

CHAT = ServiceClass("chat", ttft=1.0, tpot=0.1)
BATCH = ServiceClass("batch", yields=True)


def test_a_row_says_where_a_request_is_and_how_long_its_promise_holds() -> None:
    core = gateway()
    asked = submit("r")
    standing = Standing("ann", service=CHAT)
    asked = replace(asked, request=replace(asked.request, standing=standing))
    (request,) = requests_in(core.handle(asked, now=0.0))
    search = RowSearch(RowQuery())
    (row,) = search.look(core.streams.requests, 0.25).rows
    assert (row.phase, row.service_class, row.tenant) == ("queued", "chat", "ann")
    assert (row.waited, row.slack) == (0.25, 0.75)
    place(core, request)
    assert search.look(core.streams.requests, 0.5).rows[0].phase == "prefill"
    core.handle(TokenBatch("w", [request.stream_id], [0], [7], [None], {}), now=2.0)
    (row,) = search.look(core.streams.requests, 2.05).rows
    assert (row.phase, row.worker_id, row.num_output_tokens) == ("decode", "w", 1)
    assert row.waited == 2.0
    assert row.slack == pytest.approx(0.05)
    place(core, request, "w", "v")
    (row,) = search.look(core.streams.requests, 2.05).rows
    assert (row.phase, row.worker_id, row.target_id) == ("moving", "w", "v")


def test_filters_leave_out_what_does_not_match() -> None:
    core = gateway()
    for name, worker in (("a", "w"), ("b", "v"), ("c", "")):
        opened(core, name, on=worker)
    found = RowSearch(RowQuery(worker="v")).look(core.streams.requests, 1.0)
    assert [row.request_id for row in found.rows] == ["b"]
    assert found.num_open == 3
    queued = RowSearch(RowQuery(phase="queued")).look(core.streams.requests, 1.0)
    assert [row.request_id for row in queued.rows] == ["c"]
    assert not RowSearch(RowQuery(tenant="bob")).look(core.streams.requests, 1.0).rows


def test_of_ten_thousand_requests_few_are_read_at_a_time_and_the_oldest_is_found() -> None:
    core = gateway(replace(gateway().settings, max_waiting=20_000))
    for number in range(10_000):
        core.handle(submit(f"r{number}", at=float(-number)), now=0.0)
    search = RowSearch(RowQuery("wait", num_rows=10))
    most_read = 0
    for _ in range(20):
        found = search.look(core.streams.requests, 1.0)
        most_read = max(most_read, found.num_read)
    assert most_read <= 510
    assert [row.request_id for row in found.rows] == [f"r{9_999 - n}" for n in range(10)]
    shown = rows_of(found)
    assert len(shown["rows"]) == 10
    assert shown["open"] == 10_000


# --- workers --------------------------------------------------------------------------

WORKER = WorkerPicture("d-1", Role.DECODE, "m", "h:1", 1, False, 3, 0, 0, 400, 0, 16, 100, 30, 10)
SEEN = MemberSeen("d-1", "decode", "h:1")


def picture(*workers: WorkerPicture, term: int = 1) -> ClusterPicture:
    return replace(NO_PICTURE, fencing_token=term, workers=workers)


def test_a_worker_that_its_leader_has_lost_is_gone_at_once_and_comes_back() -> None:
    roll = Roll()
    assert roll.update(picture(WORKER), [SEEN], now=0.0)["d-1"]["state"] == "serving"
    card = roll.update(picture(), [SEEN], now=1.0)["d-1"]
    assert (card["state"], card["gone_at"], card["batch"]) == ("gone", 1.0, 3)
    assert roll.update(picture(), [], now=2.0)["d-1"]["gone_at"] == 1.0
    back = roll.update(picture(WORKER), [SEEN], now=3.0)["d-1"]
    assert back["state"] == "serving"
    assert "gone_at" not in back


def test_a_worker_with_a_lease_alone_is_starting_and_so_is_one_that_a_new_leader_awaits() -> None:
    roll = Roll()
    assert roll.update(picture(), [SEEN], now=0.0)["d-1"]["state"] == "starting"
    roll.update(picture(WORKER), [SEEN], now=1.0)
    assert roll.update(picture(term=2), [SEEN], now=2.0)["d-1"]["state"] == "starting"


def test_what_does_not_answer_changes_nothing() -> None:
    roll = Roll()
    before = roll.update(picture(WORKER), [SEEN], now=0.0)
    assert roll.update(None, None, now=1.0) == before
    assert roll.update(None, [SEEN], now=1.5) == before
    assert roll.update(picture(WORKER), None, now=2.0) == before
    assert roll.update(None, [], now=3.0)["d-1"]["state"] == "gone"


def test_who_is_gone_for_long_is_forgotten() -> None:
    roll = Roll()
    roll.update(picture(WORKER), [SEEN], now=0.0)
    roll.update(picture(), [], now=1.0)
    assert roll.update(picture(), [], now=1.0 + REMEMBERED)
    assert not roll.update(picture(), [], now=2.0 + REMEMBERED)


def test_kv_in_ten_seconds_is_read_between_two_steps_and_not_beyond_the_last() -> None:
    steps = replace(WORKER, ahead_step=4.0, ahead_tokens=(500.0, 600.0, 1000.0))
    assert kv_ahead(steps, 2.0) == 450.0
    assert kv_ahead(steps, AHEAD) == 800.0
    assert kv_ahead(replace(steps, ahead_step=1.0)) is None
    assert kv_ahead(WORKER) is None
    assert "kv_ahead" not in card_of(WORKER)
    assert card_of(steps)["kv_ahead"] == 0.5


def test_a_card_has_the_constants_of_its_workers_order_and_what_never_comes_is_none() -> None:
    told = (UsedConstant("T", inf, "given"), UsedConstant("ℓ", 4.0, "measured"))
    assert card_of(replace(WORKER, constants=told))["order"] == {
        "T": [None, "given"],
        "ℓ": [4.0, "measured"],
    }
    assert "order" not in card_of(WORKER)


def test_moves_are_shown_by_their_requests() -> None:
    moves = (MovePicture("r", "p-1", "d-1", 9, False),)
    shown = cluster_of(replace(NO_PICTURE, moves=moves, num_moving=3))
    assert shown["moves"] == {
        "r": {"source_id": "p-1", "target_id": "d-1", "num_tokens": 9, "is_running": False}
    }
    assert shown["moving"] == 3


def test_a_promise_that_is_not_made_is_not_shown() -> None:
    assert promises_of([CHAT, BATCH]) == {"chat": {"ttft": 1.0, "tpot": 0.1}, "batch": {}}


# --- figures --------------------------------------------------------------------------


def ended(at: float, ttft: float | None, *, kept: bool | None = True, end: str = "stop") -> Any:
    return EndedRequest(at, at - 1, end, "chat", "", 4, 9, 0, ttft, None, None, kept)


def test_figures_are_of_the_last_minute_by_class() -> None:
    recent = RecentRequests(0.0)
    recent.note(ended(1.0, 9.0))
    for ttft in (0.1, 0.2, 0.3):
        recent.note(ended(100.0, ttft, kept=ttft < 0.25))
    recent.note(ended(100.0, None, kept=None, end="cancelled"))
    recent.note(ended(100.0, None, kept=False, end="unavailable"))
    figures = recent.by_class(120.0)["chat"]
    assert (figures["ended"], figures["failed"]) == (5, 2)
    assert figures["ttft_p50"] == 0.2
    assert figures["kept"] == pytest.approx(2 / 4), "what failed broke its promises"
    assert "tpot_p50" not in figures
    assert recent.by_class(500.0) == {}
    assert [each.ended_at for each in recent.last_minutes(601.5)] == [100.0] * 5
    assert [each.ended_at for each in recent.last_minutes(601.0)] == [1.0] + [100.0] * 5
    assert recent.last_minutes(701.0) == []


def test_the_history_has_a_row_a_second_and_no_more_than_ten_minutes() -> None:
    recent = RecentRequests(0.0)
    for second in range(1, HISTORY + 100):
        recent.arrived()
        recent.produced(5)
        recent.tick(3, 1, now=second + 0.5)
        recent.tick(3, 1, now=second + 0.6)
    assert len(recent.history) == HISTORY
    last = dict(zip(COLUMNS, recent.history[-1], strict=True))
    assert (last["arrived_per_s"], last["tokens_per_s"], last["open"]) == (1.0, 5.0, 3)
    assert last["ttft_p50"] is None
    assert inf not in recent.history[-1]


# --- sessions -------------------------------------------------------------------------


def session_turn(core: GatewayCore, name: str, at: float) -> Request:
    event = submit(name, at=at)
    event = replace(event, request=replace(event.request, session_id="s"))
    (request,) = requests_in(core.handle(event, now=at))
    return request


def end_turn(core: GatewayCore, request: Request, at: float, num_cached: int) -> None:
    place(core, request)
    batch = tokens(request.stream_id, 0, [7], end=FinishReason.STOP)
    core.handle(replace(batch, num_cached={0: num_cached}), now=at)


def test_a_session_is_shown_where_it_last_sat_with_what_was_cached_and_why() -> None:
    core = gateway()
    first = session_turn(core, "a", 1.0)
    num_prompt = len(first.prompt_token_ids)
    end_turn(core, first, 2.0, num_prompt)
    shown = sessions_of(core.sessions, 5.0)
    assert (shown["running"], shown["idle"]) == (0, 1)
    row = shown["rows"]["0"]
    assert (row["session"], row["workers"], row["cached"]) == ("s", ["w"], 1.0)
    assert row["why"].endswith("unit=w/0")
    assert (row["began_at"], row["idle_since"]) == (1.0, 2.0)
    assert sessions_of(core.sessions, 9.0) == shown, "a row without news does not change"


def test_a_session_whose_turn_waits_is_shown_on_its_last_unit_with_the_turns_request() -> None:
    core = gateway()
    end_turn(core, session_turn(core, "a", 1.0), 2.0, 0)
    session_turn(core, "b", 3.0)
    row = sessions_of(core.sessions, 5.0)["rows"]["0"]
    assert (row["request"], row["workers"], row["turns"]) == ("b", ["w"], 2)
    assert "idle_since" not in row


def test_no_more_than_so_many_sessions_are_shown_and_those_that_run_come_first() -> None:
    core = gateway()
    for number in range(MOST_SESSIONS + 5):
        event = submit(str(number), at=float(number))
        asked = replace(event.request, session_id=f"s{number}")
        (request,) = requests_in(core.handle(replace(event, request=asked), now=float(number)))
        if number:
            end_turn(core, request, number + 0.5, 0)
    shown = sessions_of(core.sessions, 99.0)
    assert len(shown["rows"]) == MOST_SESSIONS
    assert (shown["running"], shown["idle"]) == (1, MOST_SESSIONS + 4)
    assert shown["rows"]["0"]["session"] == "s0"


def test_who_waits_for_its_own_unit_is_named_with_the_unit_and_the_hit() -> None:
    held = (HeldPicture("r", "p1", 2, 4096, 1.23456),)
    shown = cluster_of(replace(NO_PICTURE, held=held, num_held=7))
    assert shown["held"] == {"r": {"unit": "p1/2", "hit": 4096, "longest_wait": 1.235}}
    assert shown["num_held"] == 7


def test_a_row_has_its_session_and_a_search_finds_it() -> None:
    core = gateway()
    session_turn(core, "a", 1.0)
    opened(core, "b")
    found = RowSearch(RowQuery(session="s")).look(core.streams.requests, 2.0)
    assert rows_of(found)["rows"]["a"]["session"] == "s"
    assert rows_of(found)["order"] == ["a"]
