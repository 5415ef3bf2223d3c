"""STAR: what a move costs its request (line 20), and loads with whatever waits for memory."""

from __future__ import annotations

import numpy as np
import pytest

from headway.cluster import Role, UnitId, UnitLoad
from headway.core.scheduler.instance import Instance
from headway.core.worker.events import LeaderConnected
from headway.messages import LoadReport, WantedReports
from headway.policies import registry
from headway.policies.placement import DecodeUnit
from headway.policies.rescheduling import Requests, UnitReport
from headway.policies.rescheduling.star import Star, StarParams
from headway.request import StreamKey
from tests.fakes.candidates import Prompt
from tests.fakes.paged import WorkerHarness
from tests.fakes.scheduler_text import make_info
from tests.fakes.worker_core import crowded


def unit(worker_id: str, *requests: tuple[int, int, float], step_time: float = 0.01) -> UnitReport:
    """Requests are (id, N(r), remaining); a token's KV has 1000 bytes."""
    ids, tokens, remaining = zip(*requests, strict=True) if requests else ((), (), ())
    running = Requests(
        [StreamKey("g", n) for n in ids], np.asarray(tokens, dtype=np.int64), np.asarray(remaining)
    )
    return UnitReport(
        UnitId(worker_id, 0),
        100_000,
        running,
        int(sum(tokens)),
        step_time=step_time,
        kv_bytes_per_token=1000,
    )


def moved(*units: UnitReport, link_bytes_per_s: float = 1e6) -> list[int]:
    policy = Star(StarParams(link_bytes_per_s=link_bytes_per_s))
    return [move.key.stream_id for move in policy.moves(units, frozenset(), now=0.0)]


def test_a_request_must_outlive_the_transfer_of_its_own_kv() -> None:
    """4000 tokens of 1000 bytes take 4 s at 1 MB/s: 400 passes of 0.01 s."""
    ending, other = (2, 4000, 10.0), unit("b", (9, 10, 500.0))
    assert moved(unit("a", (1, 4000, 400.0), ending), other) == []
    assert moved(unit("a", (1, 4000, 402.0), ending), other) == [1]


def test_a_faster_link_or_slower_passes_make_a_move_cheaper() -> None:
    both, other = ((1, 4000, 350.0), (2, 4000, 10.0)), unit("b", (9, 10, 500.0))
    assert moved(unit("a", *both), other) == []
    assert moved(unit("a", *both), other, link_bytes_per_s=2e6) == [1]
    assert moved(unit("a", *both, step_time=0.02), other) == [1]


def test_without_a_measured_pass_a_move_costs_twenty() -> None:
    def among(remaining: float) -> list[int]:
        both = (1, 4000, remaining), (2, 4000, 10.0)
        return moved(unit("a", *both, step_time=0.0), unit("b", (9, 10, 500.0)))

    assert among(20.0) == []
    assert among(21.0) == [1]


# --- what waits for memory ------------------------------------------------------------------


def last_load(worker: WorkerHarness) -> LoadReport:
    worker.post(LeaderConnected(WantedReports(load_interval=0.0, lengths=True)))
    return [a for a in worker.log if isinstance(a, LoadReport)][-1]


def preempted(host_tokens: int) -> WorkerHarness:
    worker = crowded(host_tokens)
    while not (worker.core.loads[0].host_tokens or worker.core.loads[0].lost_tokens):
        assert worker.run_pass()
    return worker


def test_a_preempted_request_that_is_computed_again_stays_in_its_units_load() -> None:
    worker = preempted(0)
    (load,) = worker.core.loads
    (running,) = last_load(worker).units
    assert load.lost_tokens == running.lost_tokens > 8
    assert [key.stream_id for key in running.keys] == [1]
    assert running.future[0] >= running.num_tokens[0] + running.lost_tokens


def test_a_preempted_request_with_kv_in_host_memory_stays_and_can_move() -> None:
    worker = preempted(100)
    (running,) = last_load(worker).units
    assert sorted(key.stream_id for key in running.keys) == [1, 2]
    assert running.lost_tokens == 0


def test_a_report_tells_the_time_of_a_step() -> None:
    assert last_load(preempted(0)).step_time > 0


@pytest.mark.parametrize("name", ["least-kv", "min-cost", "pascal"])
def test_an_instance_that_has_just_overflowed_does_not_look_light(name: str) -> None:
    policy = registry.make("placement", name)
    overflowed = DecodeUnit(UnitId("a", 0), 2, 300, 50, 100, 10, waiting_tokens=500)
    other = DecodeUnit(UnitId("b", 0), 2, 700, 50, 100, 10)
    choices = policy.place([Prompt()], [overflowed, other])
    assert [choice.unit.worker_id for choice in choices] == ["b"]


def test_what_waits_in_host_memory_or_is_computed_again_counts_alike() -> None:
    decoder = Instance(make_info("d", Role.DECODE), 0.1)
    decoder.report((UnitLoad(0, 0, 3, 500, 20, 40, lost_tokens=60),), now=0.0)
    assert decoder.decode_units()[0].load_tokens == 600
