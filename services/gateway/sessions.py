"""The session of a call: named in its body, by a header of any known router, or by its cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

from headway.errors import invalid
from headway.request import check_session_id
from services.gateway.api_call import ApiCall

SESSION_HEADERS = ("x-session-id", "x-dynamo-session-id", "x-smg-routing-key", "x-session-affinity")
"""Headers whose value is a session's name, the first one that is there: ours, which OpenCode and
llm-d's routers use as well; Dynamo's; SGLang's router's; AIPerf's."""
TOKEN_HEADER = "x-session-token"
"""llm-d's. Elsewhere it is a credential, so that its digest is the name: nobody sees the value."""
TRACE_HEADER = "x-correlation-id"
"""AIPerf's, of a conversation; other clients draw one for each request, so that it comes last."""
END_HEADERS = ("x-session-end", "x-dynamo-session-final")
_TRUTHS = {"true": True, "1": True, "false": False, "0": False, "": False}


def in_session(call: ApiCall, header: Callable[[str], str]) -> ApiCall:
    """Return the call with its session's fields; ``header`` gives a header's value, or "".

    The body's name wins, then the headers' in order, then a name that the body implies, then the
    last header. INVALID_ARGUMENT for a header that is no name or no truth, and for a bound of turns
    without a session.
    """
    session = call.session
    name = session.named or _from_headers(header)
    name = name or session.implied or _checked(TRACE_HEADER, header)
    if session.max_turns and not name:
        limit = "left out without a session: name it in session_id, or in the header x-session-id"
        raise invalid("max_turns", session.max_turns, limit)
    ends = session.ends
    for each in END_HEADERS:
        ends = _is_true(each, header(each)) or ends
    if not name and not ends:
        return call
    fields = {**call.request_fields, "session_id": name, "ends_session": ends}
    return replace(call, request_fields=fields)


def _from_headers(header: Callable[[str], str]) -> str:
    for each in SESSION_HEADERS:
        if name := _checked(each, header):
            return name
    token = header(TOKEN_HEADER)
    return f"token-{hashlib.sha256(token.encode()).hexdigest()[:16]}" if token else ""


def _checked(name: str, header: Callable[[str], str]) -> str:
    return check_session_id(header(name), name)


def _is_true(name: str, value: str) -> bool:
    truth = _TRUTHS.get(value.lower())
    if truth is None:
        raise invalid(name, value, "true or 1, false or 0, or left out")
    return truth
