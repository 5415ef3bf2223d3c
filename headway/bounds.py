"""Bounds of parameters, declared beside each field and checked when an object is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, field, fields
from math import inf
from typing import Any

from headway.errors import invalid, require_between, require_over


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


def _field(check: Callable[[str, Any], None], default: Any, name: str) -> Any:
    return field(default=default, metadata={"check": check, "name": name})


class Bounded:
    """A base of dataclasses that refuses a field outside its declared bounds; None is no value."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]  # whoever derives from it is a dataclass
            value = getattr(self, each.name)
            if value is not None and "check" in each.metadata:
                each.metadata["check"](each.metadata["name"] or each.name, value)
