"""Policies by name."""

from __future__ import annotations

import pytest

from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.placement.iqr_lex import IqrLex


def test_every_registered_policy_can_be_made_with_its_defaults() -> None:
    for question, answers in registry.REGISTRY.items():
        for name in answers:
            assert registry.make(question, name) is not None


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
