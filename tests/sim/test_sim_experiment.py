"""Presets under conditions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.cluster import Role
from headway.errors import HeadwayError
from headway.policies import registry
from headway.presets import PRESETS, find_preset
from headway.sim.experiment import Conditions, cluster_spec, simulate
from headway.sim.records import Record
from tests.fakes.sim_clusters import instance, poisson

CONDITIONS = Conditions(((instance(Role.PREFILL), 2), (instance(Role.DECODE), 2)))


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(HeadwayError, match="vllm-like, lmetric"):
        find_preset("vllm")


@pytest.mark.parametrize("name", ["vllm-like", "sbs"])
def test_a_preset_serves_every_request(name: str) -> None:
    requests = poisson(100, 6.0, 1)
    run = simulate(cluster_spec(PRESETS[name], CONDITIONS), requests)
    assert len(run.records) == len(requests)
    assert all(record.finished for record in run.records)
    assert run.ended_at >= requests[-1].arrival_at
    assert run.gpu_seconds >= 4 * run.ended_at


def test_sbs_waits_for_its_top_ups_and_others_do_not() -> None:
    assert cluster_spec(PRESETS["sbs"], CONDITIONS).worker.linger > 0
    assert cluster_spec(PRESETS["vllm-like"], CONDITIONS).worker.linger == 0
    assert cluster_spec(PRESETS["sbs"], replace(CONDITIONS, linger=0.5)).worker.linger == 0.5


def test_conditions_override_a_presets_parameters() -> None:
    conditions = replace(CONDITIONS, params={"placement": {"k": 3.0}})
    assert cluster_spec(PRESETS["sbs"], conditions).scheduler.placement_params == {"k": 3.0}


def test_records_can_be_taken_as_they_come() -> None:
    taken = list[Record]()
    run = simulate(
        cluster_spec(PRESETS["sbs"], CONDITIONS), poisson(30, 6.0, 2), ended=taken.append
    )
    assert (len(taken), len(run.records)) == (30, 0)


def test_decisions_are_kept_where_asked_for() -> None:
    spec = cluster_spec(PRESETS["sbs"], CONDITIONS)
    run = simulate(spec, poisson(30, 6.0, 2), keeps_decisions=True)
    assert {decision.question for decision in run.decisions} == {"dispatch", "placement"}
    assert not simulate(spec, poisson(5, 6.0, 2)).decisions


def test_every_presets_policies_are_in_the_registry() -> None:
    questions = [q for q in registry.REGISTRY if q in type(PRESETS["sbs"]).__dataclass_fields__]
    missing = {
        (name, question, getattr(preset, question))
        for name, preset in PRESETS.items()
        for question in questions
        if getattr(preset, question) not in registry.REGISTRY[question]
    }
    assert not missing
