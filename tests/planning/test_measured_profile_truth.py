"""A profile against a machine whose costs are known: what a learning load tells of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest

from headway.cost.fit import Fit
from headway.cost.pass_time import PassTime
from headway.workload.traces import TraceRow
from planning.profile.figures import errors
from planning.profile.live import LiveLoad
from planning.profile.loads import LONG_PROMPTS, SPREAD, Part, drawn, one_by_one
from planning.profile.model import fit_profile, slower
from planning.profile.predict import predict
from planning.profile.sharing import LiveRun, level
from services.local.options import WorkerCounts
from tests.fakes.true_machine import HOPS, TRUTH, asked, calibration

SINGLE_RATE = (Part(150, 4.0),)
ALONE = WorkerCounts(0, 0, unified=1)
HELD_OUT: Mapping[str, Sequence[Part]] = {
    "long prompts": (Part(80, 6.0, LONG_PROMPTS),),
    "overload": (Part(120, 40.0),),
}


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def learnt(patch: pytest.MonkeyPatch) -> Mapping[str, Fit]:
    """What is fitted to lone requests, then a load of a single rate or one spread over a design."""
    alone = asked(one_by_one(0.5, 20, 0), patch, 0)[1]
    return {
        name: fit_profile([alone, asked(drawn(parts, 0), patch, 1)[1]], name, "here")[1]
        for name, parts in (("single", SINGLE_RATE), ("spread", SPREAD))
    }


def missed(pass_time: PassTime, rows: Sequence[TraceRow], patch: pytest.MonkeyPatch) -> float:
    """The mean of all figures' errors, without signs."""
    truth, _ = asked(rows, patch, 7)
    predicted = predict(calibration(pass_time), "vllm-like", ALONE, rows, num_replays=1)
    found = errors(truth, predicted.loads)
    return sum(map(abs, found.values())) / len(found)


@pytest.mark.parametrize("name", HELD_OUT)
def test_a_learning_load_spread_over_a_design_predicts_loads_that_it_has_not_seen(
    name: str, learnt: Mapping[str, Fit], patch: pytest.MonkeyPatch
) -> None:
    rows = drawn(HELD_OUT[name], 5)
    assert missed(learnt["spread"].pass_time, rows, patch) < 0.05


def test_standard_errors_hold_the_truth_and_shrink_with_the_spread(
    learnt: Mapping[str, Fit],
) -> None:
    single, spread = learnt["single"].standard_errors, learnt["spread"].standard_errors
    for term in ("per_prefill_context", "per_request"):
        assert spread[term] < single[term]
        found = getattr(learnt["spread"].pass_time, term)
        assert abs(found / getattr(TRUTH, term) - 1.0) < 3 * spread[term]


def test_the_level_of_a_machine_is_that_of_its_passes(patch: pytest.MonkeyPatch) -> None:
    seen, record = asked(one_by_one(0.5, 20, 0), patch)
    run = LiveRun(LiveLoad(seen, [], 0, 0.0), [record])
    assert level(run, TRUTH, HOPS) == pytest.approx(1.0, abs=0.1)
    half = slower(calibration().profile, 0.5).pass_time
    assert level(run, half, HOPS) == pytest.approx(2.0, rel=0.1)
