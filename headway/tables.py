"""Tables of a TOML file, read into dataclasses: a refusal names the key, value and limit."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, get_origin, get_type_hints

from headway.errors import Code, HeadwayError, invalid

T = TypeVar("T")


def parse(text: str, source: str, param: str | None = None) -> dict[str, Any]:
    """Return the tables of a TOML text; HeadwayError names the ``source`` of what is none."""
    try:
        return tomllib.loads(text)
    except ValueError as error:  # also for a number of thousands of digits
        message = f"{source} is not TOML: {error}"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param=param) from error
    except RecursionError as error:
        message = f"{source} has tables or lists in too many others: it needs three levels"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param=param) from error


def read(kind: type[T], table: Any, name: str = "") -> T:
    """Return ``kind`` of a table's values, each of the type of its field.

    ``name``: of the table, "" for a file's own. HeadwayError for a value of another type, a key
    that is unknown or missing, and for what ``kind`` itself refuses.
    """
    known = {each.name: each for each in fields(kind) if each.init}  # type: ignore[arg-type]
    refuse_others(name, table, known)
    for key, each in known.items():
        if key not in table and each.default is MISSING and each.default_factory is MISSING:
            raise invalid(_of(name, key), "missing", "given")
    hints = get_type_hints(kind)
    values = {key: _typed(_of(name, key), value, hints[key]) for key, value in table.items()}
    try:
        return kind(**values)
    except HeadwayError as error:
        raise HeadwayError(error.code, _of(name, error.message), param=error.param) from None


def _typed(name: str, value: Any, hint: Any) -> Any:
    if is_dataclass(hint):
        return read(hint, value, name)  # type: ignore[arg-type]  # a class, and no object of one
    if hint in (float, float | None):
        return number(name, value)
    if hint is bool and type(value) is not bool:
        raise invalid(name, value, "true or false")
    if hint is str and not isinstance(value, str):
        raise invalid(name, value, "a text in quotes")
    if hint in (int, int | None):
        return whole(name, value)
    if get_origin(hint) is Sequence and not isinstance(value, list):
        raise invalid(name, value, "a list")
    return value


def tables(table: Mapping[str, Any], key: str, name: str = "") -> list[Mapping[str, Any]]:
    """Return the tables under a key, at least one; ``name``: of the table that has it."""
    value, name = table.get(key), _of(name, key)
    if not isinstance(value, list) or not value or not all(isinstance(v, dict) for v in value):
        raise invalid(name, value, f"at least one table: [[{name}]]")
    return value


def whole(name: str, value: Any) -> int:
    """Return a whole number; refuse a boolean, a fraction and a text."""
    if type(value) is not int:
        raise invalid(name, value, "a whole number")
    return value


def number(name: str, value: Any) -> float:
    """Return a number; refuse a boolean and a text."""
    if type(value) not in (int, float):
        raise invalid(name, value, "a number")
    try:
        return float(value)
    except OverflowError as error:
        raise invalid(name, value, "a number under 1e308") from error


def refuse_others(name: str, table: Any, known: Collection[str]) -> None:
    """Refuse what is no table, and a key that means nothing here."""
    if not isinstance(table, Mapping):
        raise invalid(name, table, f"a table: [{name}]")
    for key in table:
        if key not in known:
            what = f"a key of {name}" if name else "a key"
            raise invalid(what, key, f"one of {', '.join(known)}")


def _of(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key
