"""Bounds of parameters, declared beside their fields."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest

from headway.bounds import Bounded, at_least, between, one_of, over
from headway.errors import HeadwayError
from headway.policies.registry import REGISTRY


@dataclass(frozen=True, slots=True)
class Sizes(Bounded):
    """A field of each kind of bound."""

    chunk: int = between(1, 8, default=4)
    share: float = over(0, 1, default=0.5, name="a share")
    rate: float = over(0, default=2.0)
    num_units: int = at_least(1, default=1)
    order: str = one_of("first", "least", default="first")
    start_up: float | None = between(0, 60, default=None)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("chunk", 9, "chunk is 9; it must be from 1 to 8"),
        ("chunk", float("nan"), "chunk is nan"),
        ("share", 0.0, "a share is 0.0; it must be a finite number over 0"),
        ("share", 1.5, "a share is 1.5; it must be from 0 to 1"),
        ("rate", float("inf"), "rate is inf"),
        ("num_units", 0, "num_units is 0; it must be at least 1"),
        ("order", "last", "order is 'last'; it must be one of first, least"),
        ("start_up", -1.0, "start_up is -1.0; it must be from 0 to 60"),
    ],
)
def test_a_field_outside_its_bounds_is_refused(field: str, value: object, said: str) -> None:
    with pytest.raises(HeadwayError) as refused:
        Sizes(**{field: value})  # type: ignore[arg-type]  # each value is of another type
    assert said in refused.value.message


def test_defaults_and_missing_values_are_within_bounds() -> None:
    assert Sizes().start_up is None
    assert Sizes(chunk=8, start_up=60.0).chunk == 8


def test_every_policy_that_declares_bounds_has_them_checked() -> None:
    for answers in REGISTRY.values():
        for answer in answers.values():
            if answer.params is not None and any(f.metadata for f in fields(answer.params)):
                assert issubclass(answer.params, Bounded)
