"""Requests that can come in time no more let others go first, and have their turn again later."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.policies.dispatch.feasibility import in_time_first
from headway.policies.dispatch.sbs import SbsParams, StaggeredBatch
from headway.presets import find_preset
from tests.fakes.candidates import Prompt

PARAMS = SbsParams(prefill_tokens_per_s=10_000, margin=0.0, late_weight=10.0)
LONG = Prompt(1, 5_000)  # is due 2 s after its arrival at 0 s, and takes 0.5 s


def steps_back(prompt: Prompt, now: float, params: SbsParams = PARAMS) -> bool:
    return StaggeredBatch(params).steps_back(prompt, now=now)


@pytest.mark.parametrize(
    ("now", "back"), [(0.0, False), (1.5, False), (1.51, True), (19.99, True), (20.0, False)]
)
def test_it_steps_back_from_when_it_is_too_late_until_it_has_waited_ten_slos(
    now: float, back: bool
) -> None:
    assert steps_back(LONG, now) is back


def test_what_its_class_promises_stands_over_the_slo_of_its_length() -> None:
    assert [steps_back(replace(LONG, promised=5.0), now) for now in (4.4, 4.6)] == [False, True]


def test_a_margin_of_the_slo_is_left_for_what_a_velocity_leaves_out() -> None:
    assert [steps_back(LONG, now, replace(PARAMS, margin=0.1)) for now in (1.3, 1.31)] == [
        False,
        True,
    ]


def test_who_takes_longer_alone_or_has_nobody_waiting_keeps_its_turn() -> None:
    assert not steps_back(Prompt(1, 20_001), 3.0)
    assert not steps_back(replace(LONG, opens_answer=False), 3.0)
    assert steps_back(replace(LONG, opens_answer=False, promised=2.0), 3.0)


def test_while_nothing_is_known_of_costs_a_prompt_takes_no_time() -> None:
    unknown = replace(PARAMS, prefill_tokens_per_s=0.0)
    assert [steps_back(LONG, now, unknown) for now in (1.99, 2.01)] == [False, True]


def test_nobody_does_in_sbs_as_the_paper_has_it() -> None:
    assert not steps_back(LONG, 3.0, replace(PARAMS, late_weight=0.0))
    assert "dispatch" not in find_preset("sbs").params
    assert find_preset("headway").params["dispatch"]["late_weight"] == 10.0


def test_readers_in_time_go_before_all_others_once_somebody_steps_back() -> None:
    late, fresh = LONG, Prompt(2, 5_000, arrival_at=3.0)
    reasons = Prompt(3, 5_000, arrival_at=3.0, opens_answer=False)
    waiting = [late, reasons, fresh]
    assert in_time_first(waiting, lambda each: steps_back(each, 1.0)) == (waiting,)
    groups = in_time_first(waiting, lambda each: steps_back(each, 3.0))
    assert [list(group) for group in groups] == [[fresh], [late, reasons]]
