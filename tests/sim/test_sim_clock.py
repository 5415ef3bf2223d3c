"""A decode batch on a clock gives, to the last byte, what a look at every request gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headway.blocks import BlockPool
from headway.cluster import Role
from headway.presets import PRESETS
from headway.sim.batch_sums import BatchSums
from headway.sim.experiment import Conditions, cluster_spec, simulate
from headway.sim.failures import Failure
from headway.sim.spec import Instances
from tests.fakes.sim_clusters import instance, poisson

RESTLESS = '''
"""First come, first served; all ranks are drawn anew before each pass, so nothing just goes on."""

from headway.policies.answer import Answer
from headway.policies.batching.fcfs import Fcfs


class Restless(Fcfs):
    num_asked = 0

    @property
    def epoch(self):
        self.num_asked += 1
        return self.num_asked


ANSWER = Answer("restless", Restless, "a test")
'''
PREFILL = (instance(Role.PREFILL), 1)
CLUSTERS: dict[str, Instances] = {
    "room for all": (PREFILL, (instance(Role.DECODE), 3)),
    "short of blocks": (PREFILL, (instance(Role.DECODE, kv_capacity_tokens=5000), 3)),
    "three units in lock-step": (PREFILL, (instance(Role.DECODE, num_units=3), 2)),
    "both stages on one": ((instance(Role.UNIFIED, kv_capacity_tokens=9000), 3),),
}
FAILURES = [Failure("decode-3", 4.0, 3.0), Failure("unified-2", 4.0, 3.0)]


@pytest.mark.parametrize("preset", ["vllm-like", "sbs", "star"])
@pytest.mark.parametrize("name", CLUSTERS)
def test_nothing_differs_where_every_request_is_looked_at_after_each_pass(
    name: str, preset: str, tmp_path: Path
) -> None:
    file = tmp_path / "restless.py"
    file.write_text(RESTLESS, "utf-8")
    unsure = {"late": 3, "away": 0.5} if name == "room for all" else None  # of lengths
    conditions = Conditions(CLUSTERS[name], policies={"batching": "fcfs"}, predictor=unsure)
    restless = replace(conditions, policies={"batching": str(file)})
    roles = {kind.role.value for kind, _ in CLUSTERS[name]}
    failures = [f for f in FAILURES if f.instance.partition("-")[0] in roles]

    def found(each: Conditions) -> tuple[str, str, float]:
        spec = cluster_spec(PRESETS[preset], each)
        requests = poisson(30, 8.0, 4)
        run = simulate(spec, requests, failures=failures, keeps_decisions=True)
        assert all(record.finished for record in run.records)
        assert len(run.records) == len(requests)
        return repr(run.records), repr(run.decisions), run.ended_at

    assert found(conditions) == found(restless)


def test_sums_over_a_batch_tell_its_blocks_some_steps_later() -> None:
    pool = BlockPool(100, 4)
    batch, lengths = BatchSums(pool), [1, 4, 5, 7, 12, 16]
    for length in lengths:
        batch.add(length, 0, step=9)
    batch.remove(12, 0, step=9)
    lengths.remove(12)
    for num_steps in range(10):
        assert batch.missing(9, num_steps) == sum(-(-(n + num_steps) // 4) for n in lengths)
    batch.advance(9, 6)
    assert batch.kv_tokens == sum(lengths) + 6 * len(lengths)
    assert batch.missing(15, 1) == sum(-(-(n + 7) // 4) for n in lengths)


def test_a_batch_gets_as_many_steps_as_it_has_blocks_for() -> None:
    pool = BlockPool(10, 4)
    batch = BatchSums(pool)
    for length in (4, 6):
        batch.add(length, 2, step=0)
    assert batch.steps_within(0, 100) == 22
    batch.promise(0, 22)
    assert pool.num_free == 0
    batch.promise(0, 1)
    assert pool.num_free == 10


def test_promised_blocks_go_to_nobody_else() -> None:
    pool, table, other = BlockPool(4, 16), list[int](), list[int]()
    pool.promise(3)
    assert not pool.grow(other, 17)
    assert pool.grow(other, 16)
    pool.redeem(table, 40)
    assert (len(table), pool.num_free) == (3, 0)
    pool.promise(0)
    pool.release(table)
    assert pool.num_free == 3
