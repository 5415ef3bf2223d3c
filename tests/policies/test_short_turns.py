"""Prefillers of one unit: none stands idle while prompts wait, and no turn is needlessly long."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from headway.cluster import Role, UnitId
from headway.cost.costs import Costs
from headway.cost.profile import load_profile
from headway.policies.dispatch import InstanceLoad
from headway.policies.dispatch.protocol import UnitDebt
from headway.policies.dispatch.sbs import SbsParams, StaggeredBatch
from headway.presets import find_preset

H100 = load_profile("llama-8b-h100-measured")
COSTS = Costs.of([(Role.PREFILL, H100)])
IDLE = InstanceLoad("idle", 0, 0, 0, 0, has_capacity=True, has_room=True)
BUSY = InstanceLoad("busy", 9, 9, 1, 1, has_capacity=False, has_room=True)


def policy(costs: Costs = COSTS, **params: float) -> StaggeredBatch:
    made = StaggeredBatch(SbsParams(**params))  # type: ignore[arg-type]  # fields by name
    for name in ("idle", "busy"):
        made.join(name)
    made.learn(costs)
    made.passed(made.turns([IDLE], 1, now=10.0)[0], now=10.0)  # the interval begins
    return made


def whose(made: StaggeredBatch, load: InstanceLoad = IDLE) -> list[str]:
    return [turn.worker_id for turn in made.turns([load, BUSY], 5, now=10.0)]


def test_an_idle_prefiller_takes_what_waits_before_the_interval_is_over() -> None:
    assert whose(policy()) == []
    assert whose(policy(conserves=True)) == ["idle"]


def test_units_that_are_packed_together_wait_for_the_interval() -> None:
    units = [UnitDebt(UnitId("idle", number), 0, 0, 512, 4096) for number in range(2)]
    assert whose(policy(conserves=True), replace(IDLE, units=units)) == []


def longest(made: StaggeredBatch, load: InstanceLoad = IDLE) -> float:
    return made.turns([load], 1, now=99.0)[0].max_tokens


@pytest.mark.parametrize("share", [0.5, 1 / 16, 0.01])
def test_a_full_turn_spends_so_much_of_its_pass_beside_its_prompts(share: float) -> None:
    most, times = longest(policy(base_share=share)), H100.pass_time
    assert times.base / times.seconds(most, 0, 0, 0) == pytest.approx(share)


def test_the_way_of_a_dispatch_is_idle_time_of_every_turn_too() -> None:
    made = policy(base_share=0.1)
    before = longest(made)
    made.acknowledged(H100.pass_time.base)
    assert longest(made) == pytest.approx(2 * before)


def test_a_turn_is_the_chunk_while_costs_are_unknown_and_beside_what_is_left_over() -> None:
    assert longest(policy(Costs(), base_share=0.1)) == inf
    assert longest(policy(base_share=0.1), replace(IDLE, task_depth=5, queued_tokens=5)) == inf
    assert longest(policy(base_share=0.1), replace(IDLE, role=Role.UNIFIED)) == inf


def test_sbs_does_as_the_paper_has_it() -> None:
    assert longest(policy()) == inf
    assert "dispatch" not in find_preset("sbs").params
    ours = find_preset("headway").params["dispatch"]
    assert (ours["conserves"], ours["base_share"]) == (True, 1 / 16)
