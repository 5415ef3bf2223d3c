"""The scheduler's core: decode placement and handoffs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from headway.cluster import Adapter, Role, UnitLoad, WorkerInfo
from headway.core.scheduler.events import WorkerReported
from headway.core.scheduler.settings import MoveLimits
from headway.messages import CancelStream, Handoff, HandoffResult
from headway.service_class import Standing
from tests.fakes.scheduler_text import (
    SchedulerHarness,
    decoding_cluster,
    key,
    make_info,
    short_pass,
)

make_cluster = partial(decoding_cluster, blocks=100)


def prefilled(*decoders: str, blocks: int = 100, **fields: Any) -> SchedulerHarness:
    """Request 1 has been prefilled on p."""
    scheduler = make_cluster(*decoders, blocks=blocks, **fields)
    scheduler.submit(1)
    scheduler.prefill("p", 1)
    return scheduler


def targets(scheduler: SchedulerHarness, worker_id: str = "p") -> list[tuple[int, str]]:
    return [(o.key.stream_id, o.target_worker_id) for o in scheduler.orders(worker_id, Handoff)]


def test_a_prefilled_request_is_handed_to_a_decode_worker() -> None:
    scheduler = prefilled("d")
    assert scheduler.orders("p", Handoff) == [Handoff(key(1), "d", "d:1", 0, 1)]
    scheduler.handed_off("p")
    assert scheduler.placed() == [(1, "p"), (1, "d")]


def test_it_waits_for_a_decode_worker_to_come() -> None:
    scheduler = prefilled()
    assert scheduler.core.status().num_awaiting_decode == 1
    scheduler.connect(make_info("d", Role.DECODE))
    assert targets(scheduler) == [(1, "d")]


def test_room_promised_to_a_handoff_is_not_promised_again() -> None:
    scheduler = make_cluster("d", blocks=3)
    for stream_id in (1, 2):
        scheduler.submit(stream_id)
        scheduler.prefill("p", stream_id)
    assert targets(scheduler) == [(1, "d")]
    scheduler.handed_off("p")
    assert targets(scheduler) == [(1, "d")]
    scheduler.end_forward("d", free=1, running=1, kv_tokens=11)
    assert targets(scheduler) == [(1, "d")]
    scheduler.end_forward("d", free=3, finished=(1,))
    assert targets(scheduler) == [(1, "d"), (2, "d")]


def test_room_of_a_move_whose_source_is_lost_goes_to_who_waits() -> None:
    scheduler = prefilled("d", blocks=3)
    scheduler.connect(make_info("q"))
    scheduler.submit(2)
    assert scheduler.dispatched("q") == [2]
    scheduler.prefill("q", 2)
    assert targets(scheduler, "q") == []
    scheduler.kill("p")
    assert targets(scheduler, "q") == [(2, "d")]


def test_what_is_on_its_way_counts_in_the_next_placement() -> None:
    scheduler = make_cluster("d1", "d2")
    for stream_id in (1, 2, 3, 4):
        scheduler.submit(stream_id)
        scheduler.prefill("p", stream_id)
    assert [target for _, target in targets(scheduler)] == ["d1", "d2", "d1", "d2"]


def test_handoffs_stay_within_the_model() -> None:
    scheduler = make_cluster()
    scheduler.connect(make_info("x", Role.DECODE, model="n"))
    scheduler.submit(1)
    scheduler.prefill("p", 1)
    assert targets(scheduler) == []


def with_layout(worker_id: str, role: Role, layout: str) -> WorkerInfo:
    return replace(make_info(worker_id, role), kv_layout=layout)


def test_kv_goes_between_equal_layouts_alone() -> None:
    scheduler = SchedulerHarness(short_pass())
    scheduler.connect(with_layout("p", Role.PREFILL, "swizzled"))
    scheduler.connect(with_layout("a", Role.DECODE, "tokens"))
    scheduler.connect(with_layout("b", Role.DECODE, "swizzled"))
    scheduler.submit(1)
    scheduler.prefill("p", 1)
    assert targets(scheduler) == [(1, "b")]


def with_adapter(worker_id: str, role: Role, digest: str) -> WorkerInfo:
    adapters = (Adapter("sql", digest),) if digest else ()
    return replace(make_info(worker_id, role), adapters=adapters)


def test_kv_goes_between_workers_with_equal_adapters_alone() -> None:
    scheduler = SchedulerHarness(short_pass())
    scheduler.connect(with_adapter("p", Role.PREFILL, "1f"))
    for worker_id, digest in (("a", ""), ("b", "2e"), ("c", "1f")):
        scheduler.connect(with_adapter(worker_id, Role.DECODE, digest))
    scheduler.submit(1)
    scheduler.prefill("p", 1)
    assert targets(scheduler) == [(1, "c")]


@pytest.mark.parametrize("layout", ["swizzled", ""])
def test_kv_that_no_worker_takes_is_given_up_and_its_request_computed_again(layout: str) -> None:
    scheduler = SchedulerHarness(short_pass())
    scheduler.connect(with_layout("p", Role.PREFILL, layout))
    scheduler.connect(with_layout("d", Role.DECODE, "tokens"))
    scheduler.submit(1)
    scheduler.prefill("p", 1)
    assert targets(scheduler) == []
    assert scheduler.cancelled("p") == [1]
    assert scheduler.lost() == [1]


def test_it_waits_while_no_worker_decodes_its_model_at_all() -> None:
    scheduler = SchedulerHarness(short_pass())
    scheduler.connect(with_layout("p", Role.PREFILL, "swizzled"))
    scheduler.submit(1)
    scheduler.prefill("p", 1)
    assert scheduler.lost() == []
    assert scheduler.core.status().num_awaiting_decode == 1


@pytest.mark.parametrize("role", [Role.DECODE, Role.UNIFIED, Role.CONVERTIBLE])
def test_every_role_that_decodes_is_a_candidate(role: Role) -> None:
    scheduler = make_cluster()
    scheduler.submit(1)
    scheduler.connect(make_info("d", role))
    scheduler.prefill("p", 1)
    assert targets(scheduler) == [(1, "d")]


def test_a_draining_worker_is_no_candidate() -> None:
    scheduler = make_cluster("d")
    scheduler.connect(scheduler.infos["d"], draining=True)
    scheduler.submit(1)
    scheduler.prefill("p", 1)
    assert targets(scheduler) == []


def test_unified_workers_keep_their_own_requests() -> None:
    scheduler = SchedulerHarness(short_pass())
    scheduler.connect(make_info("u", Role.UNIFIED))
    scheduler.submit(1)
    scheduler.serve("u", running=1, kv_tokens=10)
    assert scheduler.orders("u", Handoff) == []


def test_a_unit_that_failed_is_tried_again_after_a_rest() -> None:
    scheduler = prefilled("d")
    scheduler.handed_off("p", ok=False)
    scheduler.wait(0.99)
    assert len(targets(scheduler)) == 1
    scheduler.wait(0.02)
    assert targets(scheduler) == [(1, "d"), (1, "d")]


def test_after_so_many_failures_the_request_is_computed_again() -> None:
    scheduler = prefilled("d", moves=MoveLimits(num_tried=2))
    scheduler.handed_off("p", ok=False)
    scheduler.wait(1.1)
    scheduler.handed_off("p", ok=False)
    assert scheduler.lost() == [1]
    assert scheduler.cancelled("p") == [1]


def test_a_request_may_finish_before_the_news_of_its_move_is_here() -> None:
    scheduler = prefilled("d")
    scheduler.end_forward("d", finished=(1,))
    scheduler.handed_off("p")
    assert scheduler.core.status().num_tracked == 0
    assert scheduler.lost() == []


def test_a_cancel_of_a_prefilled_request_goes_to_its_source() -> None:
    scheduler = prefilled()
    scheduler.post(CancelStream(key(1)))
    assert scheduler.cancelled("p") == [1]
    scheduler.connect(make_info("d", Role.DECODE))
    assert targets(scheduler) == []


def test_a_cancel_of_a_moving_request_goes_to_both_ends() -> None:
    scheduler = prefilled("d")
    scheduler.post(CancelStream(key(1)))
    assert (scheduler.cancelled("p"), scheduler.cancelled("d")) == ([1], [1])


def test_a_cancelled_request_that_moved_all_the_same_is_cancelled_there() -> None:
    scheduler = prefilled("d")
    scheduler.post(CancelStream(key(1)))
    scheduler.handed_off("p")
    assert scheduler.cancelled("d") == [1, 1]
    assert scheduler.placed() == [(1, "p")]


def test_a_repeated_result_changes_nothing() -> None:
    scheduler = prefilled("d")
    scheduler.handed_off("p")
    scheduler.handed_off("p")
    assert scheduler.placed() == [(1, "p"), (1, "d")]
    assert scheduler.cancelled("d") == []


def test_the_end_of_a_move_that_an_earlier_leader_ordered_is_not_trusted() -> None:
    scheduler = prefilled("d1", "d2")
    scheduler.post(WorkerReported("p", HandoffResult(key(1), "d2", 0, ok=True)))
    assert scheduler.lost() == [1]
    assert scheduler.cancelled("d2") == [1]
    assert scheduler.core.matrix()[0].num_requests == 0  # nothing is on its way to d1


def test_an_order_is_repeated_when_an_earlier_leaders_has_failed() -> None:
    scheduler = prefilled("d1", "d2")
    scheduler.post(WorkerReported("p", HandoffResult(key(1), "d2", 0, ok=False)))
    assert targets(scheduler) == [(1, "d1"), (1, "d1")]


def test_another_target_is_found_when_both_have_failed() -> None:
    scheduler = prefilled("d1", "d2")
    scheduler.kill("d1")
    scheduler.post(WorkerReported("p", HandoffResult(key(1), "d2", 0, ok=False)))
    assert targets(scheduler) == [(1, "d1"), (1, "d2")]


def test_a_placement_says_who_was_considered_and_what_each_scored() -> None:
    scheduler = prefilled("d1", "d2")
    decision = scheduler.core.decisions[-1]
    assert (decision.question, decision.rule) == ("placement", "iqr-lex")
    assert [(c.unit.worker_id, c.load) for c in decision.considered] == [
        ("d1", (0, 0)),
        ("d2", (0, 0)),
    ]
    assert [(c.request_id, c.unit.worker_id, c.score) for c in decision.chosen] == [
        ("r1", "d1", (0, 0))
    ]


# --- several tenants --------------------------------------------------------------------

FLOOD, MINE = Standing("flood"), Standing("mine")


def prefill(scheduler: SchedulerHarness, stream_id: int, standing: Standing) -> None:
    scheduler.submit(stream_id, standing=standing)
    scheduler.prefill("p", stream_id)


def test_who_was_served_less_is_placed_first() -> None:
    scheduler = make_cluster()
    scheduler.connect(make_info("d", Role.DECODE), loads=(UnitLoad(0, 0, 9, 900, 1),))
    for stream_id in (1, 2):
        prefill(scheduler, stream_id, FLOOD)
    prefill(scheduler, 3, MINE)
    scheduler.end_forward("d", free=2, running=8, kv_tokens=800)
    assert targets(scheduler) == [(3, "d")]


def full_of_a_flood() -> SchedulerHarness:
    """Decoder d has no block that the flood does not hold, and two prompts wait for it."""
    scheduler = make_cluster("d", blocks=6, running=3, standings=dict.fromkeys((1, 2, 3), FLOOD))
    scheduler.end_forward("d", free=0, running=3, kv_tokens=33)
    prefill(scheduler, 4, FLOOD)
    prefill(scheduler, 5, MINE)
    return scheduler


def test_a_unit_that_a_flood_fills_takes_who_was_served_less() -> None:
    scheduler = full_of_a_flood()
    assert targets(scheduler)[3:] == [(5, "d")]
    scheduler.handed_off("p")
    assert scheduler.placed()[-1] == (5, "d")


def test_where_it_is_refused_it_waits_for_the_next_report_of_that_unit() -> None:
    scheduler = full_of_a_flood()
    for num_asked in range(1, 5):
        assert targets(scheduler)[3:] == [(5, "d")] * num_asked
        scheduler.handed_off("p", ok=False)
        scheduler.end_forward("p")
        assert targets(scheduler)[3:] == [(5, "d")] * num_asked
        scheduler.end_forward("d", free=0, running=3, kv_tokens=33)
    assert targets(scheduler)[3:] == [(5, "d")] * 4, "then it waits for blocks that are free"
    scheduler.end_forward("d", free=2, running=2, kv_tokens=22)
    assert targets(scheduler)[3:] == [(5, "d")] * 5
    assert scheduler.lost() == []


def test_an_idle_unit_that_failed_is_tried_again_without_a_report() -> None:
    scheduler = make_cluster("d")
    prefill(scheduler, 1, FLOOD)
    scheduler.handed_off("p")
    scheduler.end_forward("d", finished=(1,))
    prefill(scheduler, 2, MINE)
    scheduler.handed_off("p", ok=False)
    assert targets(scheduler)[1:] == [(2, "d")]
    scheduler.wait(1.1)
    assert targets(scheduler)[1:] == [(2, "d")] * 2
