"""Bounds of parameters, declared beside each field and checked when an object is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, field, fields
from functools import cache
from math import inf
from typing import Any

from headway.errors import invalid, require_between, require_over

_Check = Callable[[str, Any], None]


def between(low: float, high: float, *, default: Any = MISSING, name: str = "") -> Any:
    """Declare a field from ``low`` to ``high``; ``name``: what a refusal calls it."""
    return _field(lambda param, value: require_between(param, value, low, high), default, name)


def at_least(low: float, *, default: Any = MISSING, name: str = "") -> Any:
    """Declare a field that is ``low`` or more."""

    def check(param: str, value: float) -> None:
        if not value >= low:
            raise invalid(param, value, f"at least {low:g}")

    return _field(check, default, name)


def over(low: float, most: float = inf, *, default: Any = MISSING, name: str = "") -> Any:
    """Declare a field that is a finite number over ``low``, and at most ``most``."""

    def check(param: str, value: float) -> None:
        require_over(param, value, low)
        require_between(param, value, low, most)

    return _field(check, default, name)


def one_of(*known: str, default: Any = MISSING, name: str = "") -> Any:
    """Declare a field that is one of the known words."""

    def check(param: str, value: str) -> None:
        if value not in known:
            raise invalid(param, value, f"one of {', '.join(known)}")

    return _field(check, default, name)


def _field(check: _Check, default: Any, name: str) -> Any:
    return field(default=default, metadata={"check": check, "name": name})


class Bounded:
    """A base of dataclasses that refuses a field outside its declared bounds; None is no value."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, check, said in _checks(type(self)):  # type: ignore[arg-type]  # it is hashable
            value = getattr(self, name)
            if value is not None:
                check(said, value)


@cache
def _checks(kind: Any) -> Sequence[tuple[str, _Check, str]]:
    """Return the bounded fields of a dataclass: each one's check, and what a refusal calls it."""
    bounded = [(each.name, each.metadata) for each in fields(kind) if "check" in each.metadata]
    return [(name, said["check"], said["name"] or name) for name, said in bounded]
