"""Policies by name, for tests to which the machine's profile does not matter."""

from __future__ import annotations

from typing import Any

from headway.cost.profile import load_profile
from headway.policies import registry

A100 = load_profile("llama-8b-a100")


def make_policy(question: str, name: str, **params: object) -> Any:
    """A policy by its name; one that has to be told a profile is told the A100's."""
    known = {"profile": A100} if registry.find(question, name).reads_profile else {}
    return registry.make(question, name, **{**known, **params})
