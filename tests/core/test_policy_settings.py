"""One function turns a preset into every core's settings."""

from __future__ import annotations

import pytest

from headway.core.scheduler.settings import SchedulerSettings
from headway.core.settings import policy_settings, stages_without_classes
from headway.core.worker.settings import WorkerSettings
from headway.cost.costs import Costs
from headway.cost.profile import load_profile
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.readers import constants_of, teach
from headway.presets import PRESETS, find_preset


@pytest.mark.parametrize("name", PRESETS)
def test_every_policy_of_every_preset_can_be_made(name: str) -> None:
    found = policy_settings(
        PRESETS[name], Costs(0.05, 1e-6, 1e-4, 1e-8, profile=load_profile("llama-8b-a100"))
    )
    scheduler = found.scheduler
    registry.make("dispatch", scheduler.dispatch, **scheduler.dispatch_params)
    registry.make("packing", scheduler.packing, **scheduler.packing_params)
    registry.make("placement", scheduler.placement, **scheduler.placement_params)
    registry.make("rescheduling", scheduler.rescheduling, **scheduler.rescheduling_params)
    found.make_batching()
    found.make_estimation()
    found.burst.make()
    found.pacing.make()
    found.scaling.make()


def test_what_is_known_of_the_instances_reaches_those_who_ask_alone() -> None:
    costs = Costs(first_pass=0.2, swap_per_token=1e-6, per_request=1e-4)
    ours = policy_settings(PRESETS["headway"], costs)
    assert ours.scheduler.costs == ours.worker.costs == costs
    dispatch = registry.make("dispatch", ours.scheduler.dispatch, **ours.scheduler.dispatch_params)
    teach(dispatch, costs)
    assert dispatch.mean_pass_time == 0.2
    batching = registry.make("batching", "uniboost-memguard")
    teach(batching, costs)
    assert constants_of(batching)[0].value == 1e-6
    assert [each.name for each in constants_of(ours.make_batching())] == ["T", "τ"]
    placement = registry.make("placement", "min-cost", **ours.scheduler.placement_params)
    teach(placement, costs)
    assert [constant.value for constant in constants_of(placement)] == [1e-4, 0.0]
    assert not constants_of(policy_settings(PRESETS["pascal"], costs).make_batching())


def test_a_constant_that_two_policies_use_is_named_once() -> None:
    costs = Costs(prefill_per_token=1e-4)
    policies = [registry.make("dispatch", "sbs-warm") for _ in range(2)]
    for each in policies:
        teach(each, costs)
    names = [constant.name for constant in constants_of(*policies)]
    assert names.count("prompt token") == 1


def test_the_presets_word_stands_over_what_is_known() -> None:
    slow = PRESETS["sbs"].but({}, {"dispatch": {"default_pass_time": 0.4}})
    found = policy_settings(slow, Costs(first_pass=0.2))
    assert found.scheduler.dispatch_params["default_pass_time"] == 0.4
    dispatch = registry.make("dispatch", "sbs", **found.scheduler.dispatch_params)
    teach(dispatch, found.scheduler.costs)
    assert dispatch.mean_pass_time == 0.4


def test_a_policy_that_is_replaced_takes_its_parameters_along() -> None:
    other = PRESETS["vllm-like"].but({"dispatch": "sbs", "packing": ""}, {"placement": {}})
    assert (other.dispatch, other.packing) == ("sbs", "round-robin")
    assert not other.params_of("dispatch")


def test_parameters_come_over_those_of_the_preset() -> None:
    other = PRESETS["pascal"].but({}, {"batching": {"quantum": 10}, "dispatch": {"rule": "x"}})
    assert other.params_of("batching") == {"quantum": 10}
    assert other.params_of("dispatch") == {"rule": "x"}


def test_limits_are_the_callers() -> None:
    limits = SchedulerSettings(max_waiting=7)
    assert policy_settings(PRESETS["sbs"], scheduler=limits).scheduler.max_waiting == 7


def test_workers_linger_for_the_window_alone_and_share_the_readers_pace() -> None:
    worker = WorkerSettings(linger=0.5)
    assert policy_settings(PRESETS["sbs"], worker=worker).worker.linger == 0.5
    assert policy_settings(PRESETS["pascal"], worker=worker).worker.linger == 0.0
    slow = PRESETS["pascal"].but({}, {"pacing": {"tpot": 0.2}})
    assert policy_settings(slow).worker.reader_pace == 0.2


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(HeadwayError, match="fcfs"):
        policy_settings(find_preset("sbs").but({"batching": "fifo"}))


def test_presets_say_at_which_stages_they_look_at_no_class() -> None:
    assert stages_without_classes(find_preset("headway")) == []
    assert stages_without_classes(find_preset("sbs")) == ["the batch (batching fcfs)"]
    assert len(stages_without_classes(find_preset("vllm-like"))) == 2
