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
from headway.policies.estimation.measured_oracle import MeasuredOracle, MeasuredOracleParams
from headway.presets import PRESETS
from headway.request import StreamKey
from headway.sim.card import read_card
from headway.sim.experiment import Conditions, cluster_spec, simulate
from headway.sim.scenario import load_scenario, parse_scenario
from tests.fakes.sim_clusters import instance, poisson

MINI = Path("models/headway-mini/predictor")
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


@pytest.mark.parametrize("preset", ["star", "headway"])
def test_presets_that_ask_a_predictor_run_with_a_measured_one(preset: str) -> None:
    conditions = Conditions(((instance(Role.PREFILL), 1), (instance(Role.DECODE), 2)))
    told = replace(conditions, predictor={"away": 0.3, "late": 7, "lean": 0.4})
    found = simulate(cluster_spec(PRESETS[preset], told), poisson(40, 8.0, 1))
    assert all(record.finished for record in found.records)
