"""Policies by name."""

from __future__ import annotations

from importlib import import_module
from math import inf
from pathlib import Path

import pytest

from headway.core.settings import policy_settings, require_live
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.answer import Answer
from headway.policies.estimation.bucket_mean import BucketMean
from headway.policies.placement.iqr_lex import IqrLex
from headway.presets import PRESETS, find_preset
from headway.request import StreamKey
from services.worker.config import WorkerConfig
from tests.fakes.policies import make_policy


def test_every_registered_policy_can_be_made_with_its_defaults() -> None:
    for question, answers in registry.REGISTRY.items():
        for name in answers:
            assert make_policy(question, name) is not None


def test_a_policy_is_found_under_the_name_that_its_own_file_gives_it() -> None:
    for answers in registry.REGISTRY.values():
        assert all(answer.name == name for name, answer in answers.items())


def test_an_answers_docstring_begins_with_its_name() -> None:
    for answers in registry.REGISTRY.values():
        for name, answer in answers.items():
            assert str(import_module(answer.make.__module__).__doc__).startswith(f"``{name}``")


EDF = """
from dataclasses import dataclass

from headway.policies.answer import Answer
from headway.policies.batching import Batching, Ranked


@dataclass(frozen=True, slots=True)
class EdfParams:
    budget: float = 1.0


class Edf(Batching):
    "Earliest deadline first."

    def __init__(self, params: EdfParams | None = None) -> None:
        self.budget = (params or EdfParams()).budget

    def rank(self, candidate, *, now):
        return Ranked((candidate.arrival_at + self.budget,))


ANSWER = Answer("edf", Edf, "Liu and Layland", EdfParams)
"""


def test_a_file_outside_the_tree_is_named_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "edf.py"
    path.write_text(EDF, "utf-8")
    assert registry.make("batching", str(path), budget="2").budget == 2.0
    assert registry.find("batching", str(path)).name == "edf"


@pytest.mark.parametrize(
    "text",
    [
        "ANSWER = 1",
        "import nothing_of_that_name",
        "def",
        "EDF = 1",
        "@dataclass\nclass Edf: pass",
        "from headway.policies.dispatch.immediate import ANSWER",
        None,
    ],
)
def test_a_file_that_holds_no_policy_is_refused_by_its_path(
    tmp_path: Path, text: str | None
) -> None:
    path = tmp_path / "edf.py"
    if text is not None:
        path.write_text(text, "utf-8")
    with pytest.raises(HeadwayError, match=r"edf\.py"):
        registry.find("batching", str(path))


def test_parameters_reach_the_policy() -> None:
    assert isinstance(registry.make("placement", "iqr-lex", k=3.0), IqrLex)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(HeadwayError, match="pbaa, round-robin"):
        registry.make("packing", "tetris")


def test_an_unknown_question_is_refused_with_the_known_ones() -> None:
    with pytest.raises(HeadwayError, match="packing, placement"):
        registry.make("pakcing", "pbaa")


def test_an_unknown_parameter_is_refused_with_the_known_ones() -> None:
    with pytest.raises(HeadwayError, match="must be k"):
        registry.make("placement", "iqr-lex", q=3.0)


@pytest.mark.parametrize(
    ("question", "name", "param", "text", "value"),
    [
        ("placement", "iqr-lex", "k", "3", 3.0),
        ("batching", "uniboost", "gamma", "inf", inf),
        ("batching", "uniboost", "window", "200", 200),
        ("placement", "pascal", "migrates", "false", False),
        ("dispatch", "immediate", "rule", "random", "random"),
        ("scaling", "tokenscale", "start_up", "null", None),
    ],
)
def test_a_text_is_read_as_the_type_of_its_parameter(
    question: str, name: str, param: str, text: str, value: object
) -> None:
    read = registry.find(question, name).typed(name, {param: text})[param]
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("question", "name", "param", "limit"),
    [
        ("placement", "iqr-lex", "k", "a number"),
        ("batching", "uniboost", "window", "a whole number"),
        ("placement", "pascal", "migrates", "true or false"),
    ],
)
def test_a_text_that_is_no_such_value_is_refused(
    question: str, name: str, param: str, limit: str
) -> None:
    with pytest.raises(HeadwayError, match=f"{name} {param} is 'many'; it must be {limit}"):
        registry.make(question, name, **{param: "many"})


def test_what_only_the_simulator_knows_is_refused_live_with_the_way_out() -> None:
    declared = [
        (question, answer)
        for question, answers in registry.REGISTRY.items()
        for answer in answers.values()
        if answer.instead
    ]
    assert {answer.name for _, answer in declared} == {
        "oracle",
        "noisy-oracle",
        "measured-oracle",
        "star-oracle",
    }
    for question, answer in declared:
        with pytest.raises(HeadwayError, match=answer.instead):
            WorkerConfig(policy=f"{question}={answer.name}")
        preset = find_preset("star").but({question: answer.name})
        policy_settings(preset)  # the simulator takes it


def test_every_preset_decides_live() -> None:
    for preset in PRESETS.values():
        require_live(preset)


def test_what_a_policy_does_in_the_simulator_alone_is_declared() -> None:
    declared = {a.name for a in registry.REGISTRY["scaling"].values() if a.left_out}
    assert declared == {
        name for name in registry.REGISTRY["scaling"] if make_policy("scaling", name).loads_live
    }


class Live:
    """A request that a predictor has looked at, as a live worker knows it."""

    key = StreamKey("g", 1)
    num_prompt_tokens = 100
    num_output_tokens = 10
    prediction = 50.0
    num_tokens_since_prediction = 5
    true_remaining = None


def decides_live(question: str, answer: Answer) -> bool:
    """Return whether it decides by what a live service knows, and differs from its base."""
    policy = make_policy(question, answer.name)
    if question == "estimation":
        if isinstance(policy, BucketMean):
            policy.observe(100, 40)
        return policy.remaining(Live()) is not None
    others = {a.make for a in registry.REGISTRY[question].values()} - {answer.make}
    own = [name for name in vars(answer.make) if not name.startswith("_")]
    return bool(own) or not others.intersection(answer.make.__mro__)  # type: ignore[attr-defined]


def test_every_entry_decides_something_live_or_is_refused_with_the_way_out() -> None:
    for question, answers in registry.REGISTRY.items():
        for answer in answers.values():
            assert decides_live(question, answer) is not bool(answer.instead), answer.name
