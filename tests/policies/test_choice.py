"""Policies and parameters that a user puts over a preset's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli import main
from headway.core.settings import policy_settings
from headway.errors import HeadwayError
from headway.policies import registry
from headway.presets import PRESETS, PresetChoice, find_preset, parse_choice
from headway.sim.experiment import cluster_spec
from headway.sim.scenario import load_scenario, parse_scenario

NAMES = {name for answers in registry.REGISTRY.values() for name in answers} | set(PRESETS)
ROOT = Path(__file__).parents[2]
AMBIGUOUS = {"headway", "none", "random"}  # words with other meanings, too
ROOMS = ("headway/core", "services", "cli")
EXCEPT = {"cli/reproduce.py"}  # names papers
SCENARIO = ROOT / "headway" / "scenarios" / "chat-and-reasoning.toml"


def test_a_policy_and_its_parameters_are_named_by_question() -> None:
    choice = parse_choice("batching=trail,packing=pbaa", "batching.c=0.5,packing.order=boost")
    assert choice.policies == {"batching": "trail", "packing": "pbaa"}
    assert choice.params == {"batching": {"c": "0.5"}, "packing": {"order": "boost"}}
    assert parse_choice(*choice.texts()) == choice
    assert parse_choice("", "") == PresetChoice({}, {})


def test_a_value_may_have_commas_and_of_two_the_last_holds() -> None:
    choice = parse_choice("batching=las,batching=rr", "batching.edges=[1,2],batching.c=1")
    assert choice == PresetChoice({"batching": "rr"}, {"batching": {"edges": "[1,2]", "c": "1"}})


@pytest.mark.parametrize(
    ("policy", "settings", "said"),
    [
        ("trail", "", "--policy is 'trail'; it must be QUESTION=NAME"),
        ("order=trail", "", "--policy's question is 'order'; it must be one of dispatch"),
        ("", "batching=1", "--set is 'batching=1'; it must be QUESTION.PARAMETER=VALUE"),
        ("", "order.c=1", "--set's question is 'order'"),
        ("", "batching.c=", "--set is 'batching.c='"),
    ],
)
def test_another_form_is_refused_with_the_way_out(policy: str, settings: str, said: str) -> None:
    with pytest.raises(HeadwayError, match=re.escape(said)):
        parse_choice(policy, settings)


def test_values_are_of_their_parameters_type() -> None:
    choice = parse_choice("batching=uniboost", "batching.window=200,batching.gamma=0.5")
    found = policy_settings(find_preset("sbs").but(*choice))
    assert found.batching.params == {"window": 200, "gamma": 0.5}


def test_a_flag_stands_over_the_scenario_and_the_scenario_over_the_preset() -> None:
    own_policy = '\n[policy]\nbatching = "trail"\n[set.batching]\nc = 0.25\n'
    text = SCENARIO.read_text("utf-8") + own_policy
    conditions = parse_scenario(text, "text").conditions
    own = cluster_spec(find_preset("sbs"), conditions).batching
    assert (own.name, own.params) == ("trail", {"c": 0.25})
    other = conditions.but(*parse_choice("", "batching.c=0.5"))
    assert cluster_spec(find_preset("sbs"), other).batching.params == {"c": 0.5}
    other = conditions.but(*parse_choice("batching=las", ""))
    assert cluster_spec(find_preset("sbs"), other).batching.name == "las"


def test_a_scenario_names_policies_and_runs_no_file() -> None:
    text = SCENARIO.read_text("utf-8")
    with pytest.raises(HeadwayError, match=r"policy.batching is './edf.py'; it must be a name"):
        parse_scenario(text + '\n[policy]\nbatching = "./edf.py"\n', "text")


def test_the_simulator_runs_a_policy_by_one_flag(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = ["simulate", "chat-and-reasoning", "--preset", "sbs"]
    assert main([*wrong, "--policy", "batching=fifo"]) == 2
    assert "batching is 'fifo'; it must be one of" in capsys.readouterr().err
    assert main([*wrong, "--set", "batching.c=1"]) == 2
    assert "fcfs parameter is 'c'" in capsys.readouterr().err
    monkeypatch.setenv("HEADWAY_POLICY", "batching=lifo")
    assert main(wrong) == 2
    assert "batching is 'lifo'" in capsys.readouterr().err


def test_no_policy_and_no_preset_is_asked_for_by_its_name() -> None:
    """Policies declare what they need; a default is allowed."""
    compared = re.compile(r"(?:[=!]= *|\bin *\(? *|case *)\"([a-z-]+)\"")
    found = [
        f"{file}: {name}"
        for room in ROOMS
        for file in sorted((ROOT / room).rglob("*.py"))
        if str(file.relative_to(ROOT)) not in EXCEPT
        for name in compared.findall(file.read_text("utf-8"))
        if name in NAMES - AMBIGUOUS
    ]
    assert not found


def test_ready_made_scenarios_leave_policies_to_the_presets() -> None:
    assert not load_scenario("chat-and-reasoning").conditions.policies
