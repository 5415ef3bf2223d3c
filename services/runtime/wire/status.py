"""Refusals as gRPC statuses, both ways."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, NoReturn

import grpc

from headway.errors import Code, HeadwayError

RETRY_AFTER_KEY = "retry-after"

_STATUS = MappingProxyType({code: grpc.StatusCode[code.name] for code in Code})
_CODE = MappingProxyType({status: code for code, status in _STATUS.items()})


def status_of(error: HeadwayError) -> grpc.StatusCode:
    """Return the gRPC status of a refusal."""
    return _STATUS[error.code]


def status_of_code(code: Code) -> int:
    """Return the gRPC status number of a code."""
    number: int = _STATUS[code].value[0]
    return number


def code_of(number: int) -> Code:
    """Return the code of a gRPC status number; INTERNAL for one that we never send."""
    for status, code in _CODE.items():
        if status.value[0] == number:
            return code
    return Code.INTERNAL


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: HeadwayError) -> NoReturn:
    """End a call with a refusal; put its retry hint into the trailing metadata."""
    trailing = ((RETRY_AFTER_KEY, f"{error.retry_after:.3f}"),) if error.retry_after else ()
    await context.abort(status_of(error), error.message, trailing)
    raise error  # context.abort does not return


def error_of(error: grpc.aio.AioRpcError) -> HeadwayError:
    """Return a peer's refusal as a HeadwayError."""
    metadata = dict(error.trailing_metadata() or ())
    try:
        retry_after = float(str(metadata.get(RETRY_AFTER_KEY, 0.0)))
    except ValueError:
        retry_after = 0.0
    code = _CODE.get(error.code(), Code.INTERNAL)
    return HeadwayError(code, error.details() or error.code().name, retry_after=retry_after)
