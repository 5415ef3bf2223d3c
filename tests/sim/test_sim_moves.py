"""A running request moves as a live worker moves it: in rounds, and it stops for the tail alone."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.cluster import Role
from headway.core.scheduler.events import Decision
from headway.core.scheduler.settings import SchedulerSettings
from headway.sim.cluster import ClusterSpec, SimCluster, SimRequest
from headway.sim.kernel import Kernel
from headway.sim.network import NetworkParams
from headway.sim.records import Record
from tests.fakes.sim_clusters import PASS_TIME, close, cluster_of, instance, one_step, poisson, run

PROMPT, OUTPUT = 1000, 300
UNTIL = 120.0  # the scheduler looks for moves for ever
SLOW = NetworkParams(bytes_per_s=1e9)
STEP = PASS_TIME.seconds(0, 0, 1, PROMPT)


def moving_spec(num_decode: int = 3, **changes: object) -> ClusterSpec:
    """Decoders that even out their load often."""
    instances = ((instance(Role.PREFILL), 1), (instance(Role.DECODE), num_decode))
    scheduler = SchedulerSettings(
        placement="least-kv",
        rescheduling="current-load",
        rescheduling_params={"interval": 0.5, "rest": 1.0, "theta": 0.01, "floor": 0.0},
    )
    fields = {"scheduler": scheduler, "network": SLOW, **changes}
    return cluster_of(instances, **fields)


def moved(rounds: int, kill: str = "", at: float = 0.0) -> tuple[Record, SimCluster, Decision]:
    """One of two on one decoder moves to the other one when that is empty, at 3.5 s."""
    records = list[Record]()
    kernel = Kernel()
    cluster = SimCluster(kernel, moving_spec(2, move_rounds=rounds), records.append)
    cluster.keeps_decisions = True
    cluster.submit(SimRequest("first", 0.5, 4000, 150))
    cluster.submit(SimRequest("moves", 1.5, PROMPT, OUTPUT))
    cluster.submit(SimRequest("third", 2.0, 2 * PROMPT, 200))
    if kill:
        kernel.at(at, partial(cluster.kill, kill))
    kernel.run(UNTIL)
    (move,) = [d for d in cluster.decisions if d.question == "rescheduling"][:1]
    assert [chosen.request_id for chosen in move.chosen] == ["moves"]
    return next(r for r in records if r.request_id == "moves"), cluster, move


def longest_pause(record: Record) -> float:
    """Between two tokens, behind the handoff from prefill."""
    return float(np.diff(record.instants()[2:]).max())


def assert_nothing_is_held(cluster: SimCluster) -> None:
    for worker in cluster.workers:
        info = worker.spec.info(worker.worker_id)
        assert worker.core.num_held == 0
        assert all(load.num_free_blocks == info.num_blocks for load in worker.core.loads)


def test_the_pause_of_a_move_is_that_of_its_tail() -> None:
    all_of_it = PROMPT * 131_072 / SLOW.bytes_per_s
    a_block = 16 * 131_072 / SLOW.bytes_per_s
    assert longest_pause(moved(0)[0]) > all_of_it
    assert longest_pause(moved(4)[0]) < a_block + 3 * STEP


@pytest.mark.parametrize("rounds", [0, 1, 4])
def test_a_move_takes_the_request_away_and_leaves_nothing(rounds: int) -> None:
    record, cluster, move = moved(rounds)
    assert record.num_tokens == OUTPUT
    assert cluster.worker(move.chosen[0].unit.worker_id) is not None
    assert_nothing_is_held(cluster)


@pytest.mark.parametrize("who", ["decode-2", "decode-3"])
@pytest.mark.parametrize("after", [0.01, 0.1, 0.15, 0.16, 0.17, 0.18, 0.19, 0.2])
def test_a_death_on_the_way_costs_no_token_and_no_block(who: str, after: float) -> None:
    record, cluster, _ = moved(4, who, 3.5 + after)
    assert record.finished
    assert record.num_tokens == OUTPUT
    assert_nothing_is_held(cluster)


def boundary_spec(**changes: object) -> ClusterSpec:
    """Answers may be given elsewhere than where the request has reasoned (PASCAL)."""
    scheduler = SchedulerSettings(
        dispatch="immediate", dispatch_params={"rule": "pascal"}, placement="pascal"
    )
    fields = {"scheduler": scheduler, "network": SLOW, "report_interval": 0.5, **changes}
    return cluster_of(((instance(Role.UNIFIED), 3),), **fields)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0, 1, 4]))
def test_moves_in_leaps_are_moves_step_by_step(seed: int, rounds: int) -> None:
    requests = poisson(50, 12.0, seed)
    spec = boundary_spec(move_rounds=rounds)
    close(run(spec, requests)[0], run(one_step(spec), requests)[0])


def test_requests_that_move_all_end_with_all_their_tokens() -> None:
    requests = poisson(120, 12.0, 5)
    records, cluster = run(moving_spec(), requests, UNTIL)
    by_id = {r.request_id: r for r in requests}
    assert len(records) == len(requests)
    assert all(r.num_tokens == by_id[r.request_id].num_output_tokens for r in records)
    assert_nothing_is_held(cluster)
