"""The form of a minute of a gateway's past in the store; anything else is damaged, and not read."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from headway.console.recent import HISTORY, MOST_KEPT, EndedRequest
from headway.core.gateway.lives import MOST_ENDED

_MOST = 2**53
_Int = Annotated[int, Field(ge=-_MOST, le=_MOST)]
_Float = Annotated[float, Field(ge=-_MOST, le=_MOST)]


class _Tokens(TypedDict):
    prompt: _Int
    cached: _Int
    output: _Int
    reasoning: _Int


class _Crowd(TypedDict):
    num_ahead: _Int
    tokens_ahead: _Int
    rate: _Float
    usual_rate: _Float


class _Moment(TypedDict):
    kind: str
    at_us: _Int
    worker_id: str
    amount: _Int
    cause: str


class _Part(TypedDict):
    kind: str
    begin_us: _Int
    end_us: _Int
    worker_id: str


_Life = TypedDict(
    "_Life",
    {
        "request_id": str,
        "gateway_id": str,
        "model": str,
        "arrival_at": _Float,
        "status": str,
        "error": str,
        "tenant": str,
        "class": str,
        "is_read": bool,
        "session_id": str,
        "turn": _Int,
        "tokens": _Tokens,
        "crowd": _Crowd,
        "first_token_us": _Int | None,
        "first_answer_us": _Int | None,
        "end_us": _Int | None,
        "parts": list[_Part],
        "moments": list[_Moment],
        "num_dropped": _Int,
    },
)
"""As ``headway.life.form`` packs it."""


@with_config(ConfigDict(allow_inf_nan=False))
class _Kept(TypedDict):
    rows: Annotated[list[list[float | None]], Field(max_length=HISTORY)]
    ended: Annotated[list[EndedRequest], Field(max_length=MOST_KEPT)]
    lives: Annotated[list[_Life], Field(max_length=MOST_ENDED)]


KEPT = TypeAdapter(_Kept)
