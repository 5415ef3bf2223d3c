"""Refusals: one error type, with one code for each way out."""

from __future__ import annotations

from enum import Enum


class Code(Enum):
    """The kind of a refusal, mapped to a gRPC and an HTTP status at the edges."""

    INVALID_ARGUMENT = "invalid_argument"
    UNAUTHENTICATED = "unauthenticated"
    PERMISSION_DENIED = "permission_denied"
    NOT_FOUND = "not_found"
    FAILED_PRECONDITION = "failed_precondition"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    CANCELLED = "cancelled"
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"


class HeadwayError(Exception):
    """A refusal: the message names the value, the limit and the way out.

    ``param``: the field's name as the caller knows it. ``retry_after``: seconds, 0 if waiting does
    not help.
    """

    def __init__(
        self, code: Code, message: str, *, param: str | None = None, retry_after: float = 0.0
    ) -> None:
        message = encodable(message)
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = None if param is None else encodable(param)
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle all of it, so that a refusal comes whole out of another process."""
        return _again, (type(self), self.code, self.message, self.param, self.retry_after)


def _again(
    kind: type[HeadwayError], code: Code, message: str, param: str | None, retry_after: float
) -> HeadwayError:
    return kind(code, message, param=param, retry_after=retry_after)


def encodable(text: str) -> str:
    """Return the text with halves of surrogate pairs as escapes, so that UTF-8 can carry it."""
    return text.encode("utf-8", "backslashreplace").decode()


def invalid(param: str, value: object, limit: str) -> HeadwayError:
    """Return the most common refusal: ``param`` has a ``value`` outside its ``limit``."""
    text = repr(value)
    if len(text) > 80:
        text = text[:77] + "..."
    message = f"{param} is {text}; it must be {limit}"
    return HeadwayError(Code.INVALID_ARGUMENT, message, param=param)


def require_between(param: str, value: float, low: float, high: float) -> None:
    """Refuse a value outside ``low`` to ``high`` (both included), and NaN."""
    if not low <= value <= high:
        raise invalid(param, value, f"from {low:g} to {high:g}")


def require_over(param: str, value: float, low: float) -> None:
    """Refuse a value that is not a finite number over ``low``."""
    if not low < value < float("inf"):
        raise invalid(param, value, f"a finite number over {low:g}")
