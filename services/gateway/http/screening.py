"""Screening of a request's head, before its body is read: who asks, by what name, for what."""

from __future__ import annotations

from collections.abc import Mapping

from headway.errors import Code, HeadwayError
from services.gateway.auth import KEY_CLIENT, KeyRing
from services.gateway.http.exchange import HttpCaller, HttpRefusal, SideRoutes
from services.gateway.http.explained import TRACE
from services.gateway.http.origins import Origins, is_here, require_json
from services.gateway.reading import INLINE_BYTES

SCHEMA, VERSION, PING, LOAD = "/openapi.json", "/version", "/ping", "/load"
GET = frozenset({"/v1/models", "/health", "/livez", "/metrics", TRACE, SCHEMA, VERSION, PING, LOAD})
"""Paths of the API that take GET, whole."""
MESSAGES = "/v1/messages"
"""Anthropic's path, and the beginning of its others; their clients send a key as x-api-key."""
MODEL, EXPLAIN = "/v1/models/", "/explain/"
"""Beginnings of further ones; a name follows."""


class Screening:
    """The rules for a head: the page's origin, the caller's key, the path and its method."""

    def __init__(
        self,
        keys: KeyRing,
        origins: Origins,
        console: SideRoutes,
        most_bytes: Mapping[str, int],
        *,
        needs_key: bool,
        monitoring_needs_key: bool,
    ) -> None:
        """``most_bytes``: of a body that may be of use, by the path that takes POST."""
        self._keys = keys
        self._origins = origins
        self._console = console
        self._most_bytes = most_bytes
        self._needs_key = needs_key
        monitoring = {"/health"} if monitoring_needs_key else {"/health", "/metrics"}
        self._open_paths = monitoring | {SCHEMA, VERSION, PING, "/livez"}

    def check(
        self, method: str, path: str, headers: Mapping[bytes, bytes], address: str
    ) -> HttpCaller:
        """Return who asks; HttpRefusal where the body need not be read."""
        self._origins.check(headers)
        if method == "OPTIONS" and self._origins.cors(headers):
            return HttpCaller(address, 0)  # a browser asks before it sends the page's request
        name = self._key_name(path, headers)
        if path == TRACE and not self._needs_key and not is_here(address):
            message = (
                "traces are for clients on this machine, because this gateway has no keys: "
                "start it with --api-key-file and give an operator's key"
            )
            raise HttpRefusal(403, HeadwayError(Code.PERMISSION_DENIED, message))
        if self._console.has(path):
            self._console.screen(path, name, address)
        if self._takes_body(method, path):
            require_json(headers)
        client = f"{KEY_CLIENT}{name}" if name else address
        return HttpCaller(client, self._most_bytes.get(path, INLINE_BYTES))

    def _key_name(self, path: str, headers: Mapping[bytes, bytes]) -> str:
        """Return the name of the caller's key, "" where none is needed."""
        if path in self._open_paths or self._console.is_open(path):
            return ""
        try:
            name = self._name_of(path, headers)
        except HeadwayError as error:
            raise HttpRefusal(401, error, "invalid_api_key") from error
        if path in ("/metrics", TRACE) and not self._keys.is_operator(name):
            subject = "the metrics" if path == "/metrics" else "traces"
            message = f"only an operator's key may see {subject}; ask the operator"
            raise HttpRefusal(403, HeadwayError(Code.PERMISSION_DENIED, message))
        return name

    def _name_of(self, path: str, headers: Mapping[bytes, bytes]) -> str:
        """Return the name of the caller's key; to /v1/messages either header may bear it.

        Where both come, one of them is often for another server, or a proxy's.
        """
        given = headers.get(b"authorization", b"").decode("latin-1")
        own = headers.get(b"x-api-key", b"").decode("latin-1")
        if own and path.startswith(MESSAGES):
            try:
                return self._keys.check(f"Bearer {own}")
            except HeadwayError:
                if not given:
                    raise
        return self._keys.check(given)

    def _takes_body(self, method: str, path: str) -> bool:
        """Return whether a path takes POST, not GET; refuse an unknown path or another method."""
        is_get = self._console.is_get(path) or path in GET or path.startswith((MODEL, EXPLAIN))
        if not is_get and not self._console.has(path) and path not in self._most_bytes:
            routes = ", ".join(
                [*(f"POST {p}" for p in self._most_bytes), *(f"GET {p}" for p in sorted(GET))]
            )
            message = f"there is no {path[:80]!r} here; there are {routes}"
            raise HttpRefusal(404, HeadwayError(Code.NOT_FOUND, message), "unknown_url")
        methods = ("GET", "HEAD") if is_get else ("POST",)
        if method not in methods:
            message = f"{path} takes {'GET' if is_get else 'POST'}, not {method}"
            refused = HeadwayError(Code.INVALID_ARGUMENT, message)
            raise HttpRefusal(405, refused, "method_not_allowed", ", ".join(methods))
        return not is_get
