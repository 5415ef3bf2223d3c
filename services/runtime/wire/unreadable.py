"""Requests that are no messages of their method: refused, as any other wrong value is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from headway.errors import Code, HeadwayError

Deserialize = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a request that cannot be read, until it is known whether its caller may call."""

    error: HeadwayError


def or_unreadable(deserialize: Deserialize) -> Deserialize:
    """Return a reader of single requests, which returns :class:`Unreadable` for another message.

    gRPC reads them before anybody is asked, and would write a traceback for each.
    """

    def read(raw: bytes) -> Any:
        try:
            return deserialize(raw)
        except DecodeError:
            return Unreadable(_error(raw))

    return read


def or_error(deserialize: Deserialize) -> Deserialize:
    """Return a reader of a stream's requests, which raises HeadwayError for another message."""

    def read(raw: bytes) -> Any:
        try:
            return deserialize(raw)
        except DecodeError:
            raise _error(raw) from None

    return read


def _error(raw: bytes) -> HeadwayError:
    message = f"the request's {len(raw)} bytes are no message of this method"
    return HeadwayError(Code.INVALID_ARGUMENT, message)
