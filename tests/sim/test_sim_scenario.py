"""Scenarios: what they say, and how they refuse what they cannot be."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli import main
from headway.errors import HeadwayError
from headway.presets import PRESETS
from headway.sim.experiment import Failure, cluster_spec, simulate
from headway.sim.records import Record
from headway.sim.scenario import load_scenario, parse_scenario, scenario_names
from headway.sim.summary import keeps
from headway.sim.workload import SloLimits
from headway.workload.lengths import parse_lengths

SMALL = """
name = "small"
[[instances]]
role = "unified"
count = 2
profile = "llama-8b-a100"
chunk_tokens = 512
[workload]
rate = 5.0
num_requests = 40
[[workload.classes]]
name = "chat"
prompt = { distribution = "exponential", mean = 200 }
answer = { distribution = "uniform", low = 5, high = 50 }
[[workload.classes]]
name = "think"
share = 0.5
prompt = 100
reasoning = { distribution = "lognormal", median = 50, sigma = 0.5, max = 400 }
answer = 20
[slo]
ttft = 0.5
"""


@pytest.mark.parametrize("name", scenario_names())
def test_every_ready_made_scenario_can_be_read_and_drawn_from(name: str) -> None:
    workload = load_scenario(name).workload
    first = list(islice(workload.requests(1), 20))
    assert first == list(islice(workload.requests(1), 20))
    assert first != list(islice(workload.requests(2), 20))


def test_a_scenario_says_what_runs_and_what_is_asked() -> None:
    scenario = parse_scenario(SMALL, "test")
    ((instance, count),) = scenario.conditions.instances
    assert (count, instance.profile.chunk_tokens) == (2, 512)
    requests = list(scenario.workload.requests(1))
    assert len(requests) == 40
    thinking = [r for r in requests if r.request_id.startswith("think")]
    assert thinking
    assert all(r.num_output_tokens == r.num_reasoning_tokens + 20 for r in thinking)
    assert all(r.num_reasoning_tokens == 0 for r in requests if r not in thinking)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('role = "unified"', 'role = "both"', "instances.role is 'both'; it must be one of"),
        ("count = 2", "count = 0", "instances.count is 0"),
        ("count = 2", "colour = 2", "a key of instances is 'colour'"),
        ('profile = "llama-8b-a100"', 'profile = "llama-9b"', "there is no profile 'llama-9b'"),
        ("rate = 5.0", "rate = -1.0", "workload.rate is -1.0"),
        ("rate = 5.0", 'rate = "fast"', "workload.rate is 'fast'; it must be a number"),
        ("num_requests = 40", "", "workload.num_requests is None; it must be given"),
        ('"exponential"', '"normal"', "prompt.distribution is 'normal'; it must be one of"),
        ("mean = 200", "mean = 0", "mean is 0.0; it must be over 0"),
        ("mean = 200", "median = 200", "a key of workload.classes.prompt is 'median'"),
        ("ttft = 0.5", "ttft = 0", "slo.ttft is 0"),
        ("[slo]", "[slo", "is not TOML"),
    ],
)
def test_what_is_wrong_is_refused_by_name_value_and_limit(old: str, new: str, said: str) -> None:
    with pytest.raises(HeadwayError) as refused:
        parse_scenario(SMALL.replace(old, new), "test")
    assert said in refused.value.message
    assert "scenario test" in refused.value.message


def test_an_unknown_scenario_is_refused_with_the_known_ones() -> None:
    with pytest.raises(HeadwayError, match="chat-and-reasoning, sbs-prefill"):
        load_scenario("nowhere")


@given(
    st.sampled_from(
        [
            {"distribution": "uniform", "low": 3, "high": 9},
            {"distribution": "exponential", "mean": 50},
            {"distribution": "lognormal", "median": 50, "sigma": 2},
            {"distribution": "beta", "scale": 90, "a": 1, "b": 2},
        ]
    ),
    st.integers(1, 40),
    st.integers(40, 60),
    st.integers(0, 1000),
)
def test_lengths_stay_within_their_bounds(
    table: dict[str, object], low: int, high: int, seed: int
) -> None:
    draw = parse_lengths("prompt", {**table, "min": low, "max": high})
    assert all(low <= draw(random.Random(seed + n)) <= high for n in range(20))


def test_a_request_keeps_its_slo_if_it_ended_within_every_limit() -> None:
    record = Record("r", 0.0, 1, 0, 3, finished=True, first_token_at=0.4, last_token_at=0.6)
    record.num_tokens = 3
    assert keeps(record, SloLimits(ttft=0.5, tpot=0.2))
    assert not keeps(record, SloLimits(ttft=0.3))
    assert not keeps(record, SloLimits(tpot=0.05))
    record.finished = False
    assert not keeps(record, SloLimits())


def test_the_command_shows_presets_side_by_side_and_explains_a_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "small.toml", tmp_path / "out"
    file.write_text(SMALL)
    table = tmp_path / "table.json"
    arguments = [str(file), "--out", str(out), "--json", str(table), "--processes", "1"]
    assert main(["simulate", *arguments]) == 0
    shown = capsys.readouterr().out
    assert "vllm-like" in shown
    assert "sbs" in shown
    assert '"attainment"' in table.read_text()
    assert len((out / "sbs-1" / "requests.jsonl").read_text().splitlines()) == 40
    request_id = (out / "sbs-1" / "requests.jsonl").read_text().split('"')[3]
    assert main(["explain", request_id, "--run", str(out / "sbs-1")]) == 0
    assert "dispatch by" in capsys.readouterr().out
    assert main(["explain", "nobody", "--run", str(out / "sbs-1")]) == 2
    assert main(["explain", "nobody", "--run", str(out)]) == 2
    assert "headway simulate" in capsys.readouterr().err


def test_the_command_refuses_an_unknown_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "sbs-prefill", "--preset", "sbs,fast"]) == 2
    assert "vllm-like" in capsys.readouterr().err


# --- bursts, traces, failures, SLOs of classes --------------------------------------------


def test_arrivals_may_come_in_bursts() -> None:
    text = SMALL.replace("rate = 5.0", 'rate = 5.0\nprocess = "bursts"\nburst_factor = 4.0')
    workload = parse_scenario(text, "test").workload
    assert workload.bursts.factor == 4.0
    assert list(workload.requests(1)) == list(workload.requests(1))


def test_a_trace_gives_arrivals_and_lengths(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_at,prompt_tokens,output_tokens\n3,10,5\n5,20,6\n")
    head, _, _ = SMALL.partition("[workload]")
    workload = parse_scenario(f'{head}[workload]\ntrace = "{trace}"', "test").workload
    found = [(r.arrival_at, r.num_prompt_tokens, r.num_output_tokens) for r in workload.requests(1)]
    assert found == [(0.0, 10, 5), (2.0, 20, 6)]
    faster = parse_scenario(f'{head}[workload]\ntrace = "{trace}"\nrate = 1.0', "test").workload
    assert [r.arrival_at for r in faster.requests(1)] == [0.0, 1.0]


def test_a_trace_that_is_not_there_is_named() -> None:
    head, _, _ = SMALL.partition("[workload]")
    with pytest.raises(HeadwayError, match=r"/nowhere\.csv"):
        parse_scenario(f'{head}[workload]\ntrace = "/nowhere.csv"', "test")


def test_an_instance_fails_on_schedule_and_all_requests_still_end() -> None:
    text = SMALL + '[[failures]]\nat = 2.0\ninstance = "unified-1"\nback_after = 1.0\n'
    scenario = parse_scenario(text, "test")
    spec = cluster_spec(PRESETS["vllm-like"], scenario.conditions)
    found = simulate(spec, scenario.workload.requests(1), failures=scenario.failures)
    assert len(found.records) == 40
    assert all(record.finished for record in found.records)
    with pytest.raises(HeadwayError, match="unified-9"):
        simulate(spec, scenario.workload.requests(1), failures=[Failure("unified-9", 2.0)])


def test_a_class_may_have_its_own_slo() -> None:
    text = SMALL.replace(
        "reasoning = {", "slo = { ttfat = 2.0, ttfat_per_reasoning_token = 0.05 }\nreasoning = {"
    )
    workload = parse_scenario(text, "test").workload
    slo = workload.slo_of("think-7")
    assert slo is not None
    assert workload.slo_of("chat-3") is None
    record = Record("think-7", 0.0, 10, 100, 110, finished=True)
    record.first_answer_at = 6.9
    assert keeps(record, slo)
    record.first_answer_at = 7.1
    assert not keeps(record, slo)
