"""The words of a client of vLLM about its request, and a class that an HTTP header names."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from headway.service_class import ServiceClass, ServiceClasses, shipped_classes

_MOST_TOKENS = 1e9
_CLASS_ARGUMENT = "headway_class"
_CLASS_HEADER = b"x-headway-class"
_CLASSES = shipped_classes()


class Hints(NamedTuple):
    """The words of a client about its request."""

    reasons: bool | None = None
    """True if its output begins with reasoning; None: it does not say."""
    predicted_output_tokens: float = 0.0
    service: ServiceClass | None = None
    """Its class, of those that come with Headway; None: it asks for none."""


def read_hints(extra_args: Mapping[str, Any] | None, priority: int = 0) -> Hints:
    """Return the hints among a request's extra arguments; what is no hint is ignored.

    ``priority``: vLLM's, the least first. Above 0 it means a class, unless one is named; 0 is what
    a client sends that knows of none.
    """
    given: Mapping[str, Any] = extra_args or {}
    length: Any = given.get("headway_predicted_output_tokens")
    reasons: Any = given.get("headway_reasons")
    if type(length) not in (int, float) or not 0 <= length < _MOST_TOKENS:
        length = 0.0
    is_said = type(reasons) in (int, bool)
    service = _service(_CLASSES, given.get(_CLASS_ARGUMENT), priority)
    return Hints(bool(reasons) if is_said else None, length, service)


def _service(classes: ServiceClasses, name: Any, priority: int) -> ServiceClass | None:
    service = classes.by_name.get(name) if isinstance(name, str) else None
    return classes.of_priority(priority) if service is None and priority > 0 else service


# --- the header, at vLLM's HTTP server ------------------------------------------------

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class ClassHeader:
    """``--middleware headway_vllm.ClassHeader``: hands ``x-headway-class`` to the scheduler.

    vLLM keeps headers from its engine, so the class travels in the body's ``vllm_xargs``. A request
    without the header, or with a body that is no JSON object, passes as it is.
    """

    def __init__(self, app: App) -> None:
        """``app``: the ASGI application behind it."""
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve a request."""
        named = [value for name, value in scope.get("headers", ()) if name == _CLASS_HEADER]
        if scope["type"] != "http" or scope.get("method") != "POST" or not named:
            await self._app(scope, receive, send)
            return
        messages = [await receive()]
        while messages[-1].get("more_body"):
            messages.append(await receive())
        body = b"".join(message.get("body", b"") for message in messages)
        changed = _with_class(body, named[-1].decode("latin-1"))
        replaced = [{"type": "http.request", "body": changed}]
        if messages[-1]["type"] != "http.request":  # the client has left
            replaced = messages
        headers = [each for each in scope["headers"] if each[0] != b"content-length"]
        scope = {**scope, "headers": [*headers, (b"content-length", b"%d" % len(changed))]}

        async def receive_changed() -> Message:
            return replaced.pop(0) if replaced else await receive()

        await self._app(scope, receive_changed, send)


def _with_class(body: bytes, name: str) -> bytes:
    """Return a request's body with the class among its extra arguments; theirs stands."""
    try:
        given = json.loads(body)
    except ValueError:
        return body
    extra = given.get("vllm_xargs") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(extra or {}, dict):
        return body
    return json.dumps({**given, "vllm_xargs": {_CLASS_ARGUMENT: name} | (extra or {})}).encode()
