"""Host, Origin and Content-Type: what a web page may make a browser send, and be shown (CORS).

A page whose name resolves to loopback (DNS rebinding) reaches a gateway there, but its requests
bear the page's name as their host. A page of another origin bears that origin.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from headway.core.gateway.quotas import LIMIT_HEADERS
from headway.errors import Code, HeadwayError
from services.gateway.auth import ADDRESS_CLIENT
from services.gateway.http.exchange import Exchange, HttpRefusal

_JSON = b"application/json"
_SHOWN_TO_PAGES = ", ".join(("x-request-id", "x-headway-decision", "retry-after", *LIMIT_HEADERS))
_MOST_KNOWN = 256  # names that are remembered as good


class Origins:
    """The names that this gateway answers to, and the origins of pages that may call it.

    Checked on loopback, and elsewhere once ``hosts`` or ``origins`` are given.
    """

    def __init__(self, hosts: Iterable[str], origins: Iterable[str], *, loopback: bool) -> None:
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origin.lower() for origin in origins)
        self._checks_hosts = loopback or bool(self._hosts)
        self._checks_origins = self._checks_hosts or bool(self._origins)
        self._known: set[tuple[bytes, bytes]] = set()

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse a host or an origin that is not one of these; HttpRefusal says what to do."""
        names = headers.get(b"host", b""), headers.get(b"origin", b"")
        if names in self._known:
            return
        host, origin = (name.decode("latin-1").lower() for name in names)
        if self._checks_hosts and host and not self._answers_to(_name(host)):
            message = (
                f"this gateway does not answer to the host {host[:80]!r}; use localhost, or start "
                "it with --allowed-host"
            )
            raise _refusal(message, "host_not_allowed")
        if self._checks_origins and origin and not self._is_allowed(origin, host):
            message = (
                f"pages of {origin[:80]!r} may not call this gateway; start it with --cors-origin"
            )
            raise _refusal(message, "origin_not_allowed")
        if len(self._known) < _MOST_KNOWN:
            self._known.add(names)

    def cors(self, headers: Mapping[bytes, bytes]) -> str:
        """Return the origin that a browser may show the answer to, "" for none."""
        origin = headers.get(b"origin", b"").decode("latin-1")
        return origin if origin and origin.lower() in self._origins else ""

    def allow_page(self, exchange: Exchange) -> None:
        """Let a browser show the answer to a page whose origin is allowed."""
        if origin := self.cors(exchange.headers):
            exchange.add_header("access-control-allow-origin", origin)
            exchange.add_header("access-control-expose-headers", _SHOWN_TO_PAGES)
            exchange.add_header("vary", "origin")

    def _answers_to(self, name: str) -> bool:
        if name == "localhost" or name in self._hosts:
            return True
        try:
            return ipaddress.ip_address(name.strip("[]")).is_loopback
        except ValueError:
            return False

    def _is_allowed(self, origin: str, host: str) -> bool:
        return origin in self._origins or _netloc(origin) == host


def allow_request(exchange: Exchange) -> None:
    """Answer a browser that asks what an allowed page may send."""
    exchange.add_header("access-control-allow-methods", "GET, POST")
    wanted = exchange.header("access-control-request-headers")
    exchange.add_header("access-control-allow-headers", wanted or "authorization")
    exchange.add_header("access-control-max-age", "600")
    exchange.respond(204, _JSON.decode(), b"")


def require_json(headers: Mapping[bytes, bytes]) -> None:
    """Refuse a body of another type: a page may send those without asking."""
    given = headers.get(b"content-type", b"")
    if given != _JSON and given.partition(b";")[0].strip().lower() != _JSON:
        content_type = given.decode("latin-1")[:80]
        message = f"the content type is {content_type!r}; send `Content-Type: application/json`"
        refused = HeadwayError(Code.INVALID_ARGUMENT, message)
        raise HttpRefusal(415, refused, "unsupported_media_type")


def _refusal(message: str, code: str) -> HttpRefusal:
    return HttpRefusal(403, HeadwayError(Code.PERMISSION_DENIED, message), code)


def _name(host: str) -> str:
    """Return the host without its port and a final dot."""
    name, _, port = host.rpartition(":")
    return (name if name and port.isdecimal() else host).removesuffix(".")


def _netloc(origin: str) -> str | None:
    """Return an origin's host and port; None for what is no URL, for example ``http://[``."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def is_here(address: str) -> bool:
    """Return whether a client's address is loopback's; of IPv6 a network is known."""
    host = address.removeprefix(ADDRESS_CLIENT).partition("/")[0]
    if host in ("local", "::"):  # ::1 is counted as ::/64
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
