"""A simulated predictor errs as a trained one was measured to."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from headway.cluster import Role
from headway.errors import HeadwayError
from headway.forward_pass import ForwardPass, PassItem
from headway.policies.estimation.measured_oracle import MeasuredOracle, MeasuredOracleParams
from headway.presets import PRESETS
from headway.request import SamplingParams, StreamKey
from headway.sim.card import read_card
from headway.sim.clients import SimRequest
from headway.sim.experiment import Conditions, cluster_spec, simulate
from headway.sim.predicting import PredictingPace
from headway.sim.scenario import load_scenario, parse_scenario
from headway.sim.views.run import require_views
from tests.fakes.sim_clusters import close, instance, one_step, poisson

MINI = Path(__file__).parents[2] / "models" / "headway-mini" / "predictor"
SMALL = """
[[instances]]
role = "unified"
profile = "llama-8b-a100"
[workload]
rate = 5.0
num_requests = 4
[[workload.classes]]
prompt = 20
answer = 20
"""


class Running:
    """A request of so many tokens, seen after some."""

    num_prompt_tokens = 10
    prediction = None
    num_tokens_since_prediction = 0

    def __init__(self, number: int, done: int, total: int) -> None:
        self.key = StreamKey("g", number)
        self.num_output_tokens = done
        self.true_remaining = total - done


def error(params: MeasuredOracleParams, done: int, total: int = 1000) -> float:
    """The mean absolute error of 2,000 requests, as a share of what they have left."""
    oracle = MeasuredOracle(params)
    runs = (Running(number, done, total) for number in range(2000))
    left = total - done
    return statistics.fmean(abs((oracle.remaining(r) or 0.0) - left) / left for r in runs)


def test_errors_fall_with_tokens_generated_as_the_card_says() -> None:
    params = MeasuredOracleParams(generated=(0, 200, 600), errors=(0.8, 0.4, 0.1))
    for done, wanted in ((20, 0.8), (220, 0.4), (620, 0.1)):
        assert error(params, done) == pytest.approx(wanted, rel=0.1)


def test_long_outputs_are_expected_shorter_and_short_ones_longer() -> None:
    oracle = MeasuredOracle(MeasuredOracleParams(errors=(0.0,), lean=0.5, usual=400, late=0))
    assert oracle.remaining(Running(1, 0, 1600)) == pytest.approx(800)
    assert oracle.remaining(Running(1, 0, 100)) == pytest.approx(200)
    assert oracle.remaining(Running(1, 0, 400)) == pytest.approx(400)


def test_an_answer_comes_late_and_counts_down() -> None:
    oracle = MeasuredOracle(MeasuredOracleParams(errors=(0.0,), late=5, interval=10))
    assert oracle.remaining(Running(1, 4, 100)) is None
    assert oracle.remaining(Running(1, 5, 100)) == 95
    noisy = MeasuredOracle(MeasuredOracleParams(errors=(0.9,), late=5, interval=10))
    first = [noisy.remaining(Running(1, done, 10_000)) for done in range(5, 15)]
    assert all(a is not None and b == pytest.approx(a - 1) for a, b in pairwise(first))
    assert noisy.remaining(Running(1, 15, 10_000)) != pytest.approx((first[-1] or 0.0) - 1)


def test_who_is_away_answers_with_what_was_known_before() -> None:
    never = MeasuredOracle(MeasuredOracleParams(away=1.0))
    assert never.remaining(Running(1, 500, 1000)) is None
    often = MeasuredOracleParams(errors=(0.0,), away=0.5, late=0, interval=100)
    first = [MeasuredOracle(often).remaining(Running(n, 50, 1000)) for n in range(400)]
    assert 120 < first.count(None) < 280
    assert set(first) == {None, 950.0}


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"generated": (5,), "errors": (0.1,)}, "generated is"),
        ({"generated": (0, 5), "errors": (0.1,)}, "2 shares"),
        ({"errors": (3.0,)}, "errors is"),
        ({"away": 1.5}, "away is 1.5"),
    ],
)
def test_parameters_that_say_nothing_are_refused(params: dict[str, object], said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        MeasuredOracleParams(**params)  # type: ignore[arg-type]  # by name


def test_the_shipped_predictors_card_can_be_read(tmp_path: Path) -> None:
    (folder,) = MINI.iterdir()
    found = read_card(folder)
    assert found == read_card(folder / "metrics.json")
    params = MeasuredOracleParams(**found)  # type: ignore[arg-type]  # by name
    assert params.generated[0] == 0
    assert max(params.errors) < 0.1
    (tmp_path / "metrics.json").write_text(json.dumps({"mae": {}}))
    with pytest.raises(HeadwayError, match=r"metrics\.json cannot be read"):
        read_card(tmp_path)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"mae": {"mean": 3.0}}, "mae is {'mean': 3.0}; it must be a table with 'with earlier"),
        ({"mean_remaining": 0.0}, r"metrics\.json: mean_remaining is 0"),
        ({"from": float("inf")}, r"metrics\.json cannot be read: OverflowError"),
    ],
)
def test_a_card_that_says_nothing_is_refused(
    tmp_path: Path, row: dict[str, object], said: str
) -> None:
    good = {"from": 0, "mean_remaining": 100.0, "mae": {"hidden state": 30.0}}
    (tmp_path / "metrics.json").write_text(json.dumps({"by_generated": [{**good, **row}]}))
    with pytest.raises(HeadwayError, match=said):
        read_card(tmp_path)


def test_a_scenario_names_a_card_for_presets_that_ask_a_predictor(tmp_path: Path) -> None:
    row = {"from": 0, "mean_remaining": 100.0, "mae": {"hidden state": 30.0}}
    (tmp_path / "metrics.json").write_text(json.dumps({"by_generated": [row]}))
    text = SMALL + '[predictor]\ncard = "metrics.json"\naway = 0.1\nlate = 3\n'
    conditions = parse_scenario(text, "test", tmp_path).conditions
    star = cluster_spec(PRESETS["star"], conditions).estimation
    assert star is not None
    wanted = {"generated": [0], "errors": [0.3], "away": 0.1, "late": 3}
    assert (star.name, star.params) == ("measured-oracle", wanted)
    assert cluster_spec(PRESETS["sbs"], conditions).estimation is None
    plain = cluster_spec(PRESETS["star"], load_scenario("chat-and-reasoning").conditions)
    assert plain.estimation is not None
    assert plain.estimation.name == "noisy-oracle"
    with pytest.raises(HeadwayError, match="away is 7"):
        parse_scenario(SMALL + "[predictor]\naway = 7\n", "test")


# --- what a prediction costs ----------------------------------------------------------

COST = 0.005
PAIR = Conditions(((instance(Role.PREFILL), 1), (instance(Role.DECODE), 2)))


@pytest.mark.parametrize("preset", ["star", "headway"])
@pytest.mark.parametrize(
    ("num_output", "num_predictions"), [(1, 0), (50, 0), (100, 1), (150, 2), (400, 5)]
)
def test_a_prediction_adds_its_time_to_the_pass_that_it_is_made_in(
    preset: str, num_output: int, num_predictions: int
) -> None:
    """Shortly before each load report, one a second, as live workers predict: 12 ms a token."""
    request = SimRequest("r", 0.0, 100, num_output)

    def ttlt(conditions: Conditions) -> float:
        (record,) = simulate(cluster_spec(PRESETS[preset], conditions), [request]).records
        assert record.ttlt is not None
        return record.ttlt

    took = ttlt(replace(PAIR, prediction_seconds=COST)) - ttlt(PAIR)
    assert took == pytest.approx(num_predictions * COST, abs=1e-9)


def test_requests_of_a_pass_are_predicted_together_and_dp_units_beside_each_other() -> None:
    on_units = [
        PassItem(StreamKey("g", block), (1,), 1, (block,), True, SamplingParams(), (1,), (1,))
        for block in (0, 1, 10, 11)
    ]
    paced = PredictingPace(COST, 10, lambda work, has_prompts: 2 * work)
    paced.note(ForwardPass(1, tuple(on_units), hidden=(0, 1, 2)))
    paced.note(ForwardPass(2, tuple(on_units)))
    assert paced(1.0, False) == pytest.approx(2 * (1.0 + 2 * COST))
    assert paced(1.0, False) == 2.0


@pytest.mark.parametrize("preset", ["star", "headway"])
def test_predictions_that_take_no_time_change_no_decision(preset: str) -> None:
    spec, requests = cluster_spec(PRESETS[preset], PAIR), poisson(40, 8.0, 1)
    free = cluster_spec(PRESETS[preset], replace(PAIR, prediction_seconds=1e-15))
    close(*(list(simulate(each, requests).records) for each in (one_step(spec), free)))


def test_only_what_reads_hidden_states_takes_time() -> None:
    conditions = replace(PAIR, prediction_seconds=COST)
    without = cluster_spec(PRESETS["sbs"], conditions)
    assert without == cluster_spec(PRESETS["sbs"], PAIR)
    require_views(without)
    with pytest.raises(HeadwayError, match=r"predictions that take time .*seconds_per_request"):
        require_views(cluster_spec(PRESETS["star"], conditions))


def test_a_scenario_says_what_a_prediction_costs() -> None:
    text = SMALL + "[predictor]\nseconds_per_request = 0.002\n"
    conditions = parse_scenario(text, "test").conditions
    assert (conditions.predictor, conditions.prediction_seconds) == ({}, 0.002)
    assert parse_scenario(SMALL, "test").conditions.prediction_seconds == 0
    with pytest.raises(HeadwayError, match=r"predictor\.seconds_per_request is -1.*from 0 to 60"):
        parse_scenario(text.replace("0.002", "-1"), "test")


@pytest.mark.parametrize("preset", ["star", "headway"])
def test_presets_that_ask_a_predictor_run_with_a_measured_one(preset: str) -> None:
    conditions = Conditions(((instance(Role.PREFILL), 1), (instance(Role.DECODE), 2)))
    told = replace(conditions, predictor={"away": 0.3, "late": 7, "lean": 0.4})
    found = simulate(cluster_spec(PRESETS[preset], told), poisson(40, 8.0, 1))
    assert all(record.finished for record in found.records)
