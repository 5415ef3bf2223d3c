"""Reads a JSON body's fields: each is checked, and none is silently ignored."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from headway.errors import Code, HeadwayError, invalid


def parse_json_object(body: bytes) -> dict[str, Any]:
    """The body as a JSON object; INVALID_ARGUMENT names what is wrong with it.

    NaN and Infinity (no JSON, but Python's default), bad UTF-8 and nesting by the thousand are
    refused.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad_body(f"is not UTF-8 (byte {error.start}: {error.reason})") from error
    try:
        found = _DECODER.decode(text)
    except RecursionError as error:
        raise _bad_body("is nested too deeply; a request needs about ten levels") from error
    except ValueError as error:
        raise _bad_body(f"is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise _bad_body(f"is a JSON {_kind(found)}; it must be an object")
    return found


class Fields:
    """One JSON object's fields; null counts as absent."""

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self._values = {name: value for name, value in values.items() if value is not None}
        self._where = where
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def param(self, name: str) -> str:
        """The field's name as the client knows it."""
        return f"{self._where}.{name}" if self._where else name

    def any(self, name: str) -> Any:
        """The raw value, None if absent."""
        self._read.add(name)
        return self._values.get(name)

    def text(self, name: str, default: str | None = None) -> str:
        """A string without lone surrogates (those cannot be written as UTF-8)."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise invalid(self.param(name), value, f"a string, not {_kind(value)}")
        return checked_text(value, self.param(name))

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise invalid(self.param(name), value, "true or false")
        return value

    def integer(self, name: str) -> int | None:
        """A whole number (1.0 counts as one) of at most 64 bits, None if absent."""
        value = self.any(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**64:
            raise invalid(self.param(name), value, "a whole number of at most 64 bits")
        return value

    def number(self, name: str) -> float | None:
        """A finite number, None if absent."""
        value = self.any(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise invalid(self.param(name), value, f"a number, not {_kind(value)}")
        if isinstance(value, int) and abs(value) > 2**63:
            raise invalid(self.param(name), value, "a number of at most 64 bits")
        if not math.isfinite(value):
            raise invalid(self.param(name), value, "a finite number")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        """An object, empty if absent."""
        value = self._get(name, {})
        if not isinstance(value, dict):
            raise invalid(self.param(name), value, f"an object, not {_kind(value)}")
        return value

    def items(self, name: str) -> list[Any]:
        """A list, empty if absent."""
        value = self._get(name, [])
        if not isinstance(value, list):
            raise invalid(self.param(name), value, f"a list, not {_kind(value)}")
        return value

    def refuse_others(
        self, harmless: Iterable[str], neutral: Mapping[str, tuple[Any, ...]]
    ) -> None:
        """Refuse what was not read, unless it is harmless or a neutral value asks for nothing."""
        for name, value in self._values.items():
            if name in self._read or name in harmless:
                continue
            if name not in neutral:
                message = f"{self.param(name)} is not a parameter of this API; leave it out"
                raise HeadwayError(Code.INVALID_ARGUMENT, message, param=self.param(name))
            if not any(
                value == allowed and type(value) is type(allowed) for allowed in neutral[name]
            ):
                message = f"{self.param(name)} is not supported; leave it out"
                raise HeadwayError(Code.INVALID_ARGUMENT, message, param=self.param(name))

    def _get(self, name: str, default: Any) -> Any:
        self._read.add(name)
        value = self._values.get(name, default)
        if value is None and name not in self._values:
            message = f"{self.param(name)} is missing; it is required"
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param=self.param(name))
        return value


def checked_text(text: str, param: str) -> str:
    """The text, if it can be written as UTF-8."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            where = f"character {error.start} is half of a surrogate pair"
            raise HeadwayError(
                Code.INVALID_ARGUMENT, f"{param} is not valid Unicode: {where}", param=param
            ) from error
    return text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _bad_body(what: str) -> HeadwayError:
    return HeadwayError(Code.INVALID_ARGUMENT, f"the request body {what}")


def _kind(value: object) -> str:
    kinds = {dict: "object", list: "list", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")
