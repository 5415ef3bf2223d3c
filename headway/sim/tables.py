"""Reading the tables of a scenario: every refusal names the key, the value and the limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from headway.errors import invalid


def tables(table: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return the tables under a name, at least one."""
    value = table.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(v, dict) for v in value):
        raise invalid(name, value, f"at least one table: [[{name}]]")
    return value


def numbers(name: str, table: Any, kind: type) -> dict[str, float]:
    """Return a table of numbers, each a field of ``kind``."""
    if not isinstance(table, dict):
        raise invalid(name, table, f"a table: [{name}]")
    refuse_others(name, table, tuple(f.name for f in fields(kind)))
    for key, value in table.items():
        number(f"{name}.{key}", value)
    return table


def number(name: str, value: Any) -> float:
    """Return a number; refuse a boolean and a text."""
    if type(value) not in (int, float):
        raise invalid(name, value, "a number")
    return float(value)


def refuse_others(name: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse a key that means nothing here."""
    for key in table:
        if key not in known:
            raise invalid(f"a key of {name}", key, f"one of {', '.join(known)}")
