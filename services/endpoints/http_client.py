"""The HTTP client of endpoints, which are not ours: it unpacks nothing, and keeps nothing."""

from __future__ import annotations

from typing import Any

import aiohttp


def open_client(headers: dict[str, str] | None = None, **options: Any) -> aiohttp.ClientSession:
    """Return a client that asks for plain answers and takes no cookies. The caller closes it.

    A few hundred kilobytes of gzip may unpack to a gigabyte, all of it in one piece.
    """
    plain = {**(headers or {}), "Accept-Encoding": "identity"}
    jar = aiohttp.DummyCookieJar()
    return aiohttp.ClientSession(headers=plain, cookie_jar=jar, auto_decompress=False, **options)


def is_packed(reply: aiohttp.ClientResponse) -> bool:
    """Return whether an answer is compressed, though nobody asked for that."""
    return reply.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity")
