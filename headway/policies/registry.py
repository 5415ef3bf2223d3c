"""Every policy by its question and its name: what flags, tests and reports call them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from headway.errors import invalid
from headway.policies import (
    batching,
    burst,
    dispatch,
    estimation,
    pacing,
    packing,
    placement,
    rescheduling,
    scaling,
)
from headway.policies.answer import Answer

REGISTRY: Mapping[str, Mapping[str, Answer]] = MappingProxyType(
    {
        "batching": batching.ANSWERS,
        "burst": burst.ANSWERS,
        "dispatch": dispatch.ANSWERS,
        "estimation": estimation.ANSWERS,
        "pacing": pacing.ANSWERS,
        "packing": packing.ANSWERS,
        "placement": placement.ANSWERS,
        "rescheduling": rescheduling.ANSWERS,
        "scaling": scaling.ANSWERS,
    }
)


def find(question: str, name: str) -> Answer:
    """The answer of that name; refuses what it does not know and lists what it does."""
    answers = REGISTRY.get(question)
    if answers is None:
        raise invalid("policy question", question, f"one of {', '.join(sorted(REGISTRY))}")
    answer = answers.get(name)
    if answer is None:
        raise invalid(question, name, f"one of {', '.join(sorted(answers))}")
    return answer


def make(question: str, name: str, **params: object) -> Any:
    """A policy by name, with these parameters; HeadwayError as ``find``, or for a parameter."""
    return find(question, name).build(f"{question} {name}", params)
