"""Fields of a body that name its session, and say when it is over."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from headway.request import MAX_SESSION_CHARS, check_session_id
from services.gateway.api_call import SessionAsk
from services.gateway.openai.shapes import Fields, Whole

SessionName = Annotated[str, Field(min_length=1, max_length=MAX_SESSION_CHARS)]
MAX_TURNS = 2**31 - 1


class SessionControl(Fields):
    """The object ``nvext.session_control`` of Dynamo's clients."""

    harmless: ClassVar[frozenset[str]] = frozenset({"timeout"})
    session_id: SessionName
    action: Literal["open", "bind", "close"] | None = None


class Extensions(Fields):
    """The object ``nvext`` of Dynamo's clients; its hints have no effect here."""

    harmless: ClassVar[frozenset[str]] = frozenset({"agent_hints"})
    session_control: SessionControl | None = None


class SessionBody(Fields):
    """The part of a body that says which session it belongs to."""

    session_id: SessionName | None = None
    session_end: bool = False
    max_turns: Annotated[Whole, Field(ge=1, le=MAX_TURNS)] | None = None
    prompt_cache_key: Annotated[str, Field(max_length=MAX_SESSION_CHARS)] | None = None
    nvext: Extensions | None = None


def session_of(fields: SessionBody, continued: str = "") -> SessionAsk:
    """Return what a body says; ``continued``: the session of what it continues, if any."""
    control = fields.nvext.session_control if fields.nvext is not None else None
    named = check_session_id(fields.session_id or "")
    is_closed = False
    if control is not None:
        own = check_session_id(control.session_id, "nvext.session_control.session_id")
        named, is_closed = named or own, control.action == "close"
    implied = continued or check_session_id(fields.prompt_cache_key or "", "prompt_cache_key")
    return SessionAsk(named, implied, fields.session_end or is_closed, fields.max_turns or 0)
