"""The files of the page, as they are served: read once, with their types and their policy."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "web"
CONSOLE = "/console"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_INLINE = re.compile(r'<script type="importmap">(.*?)</script>', re.DOTALL)


class PageFile(NamedTuple):
    """One file."""

    content_type: str
    body: bytes
    packed: bytes
    """The body as gzip."""


@cache
def files() -> Mapping[str, PageFile]:
    """Return the files by the path of their URL."""
    pages = {}
    for path in sorted(FOLDER.rglob("*")):
        kind = _TYPES.get(path.suffix)
        if path.is_file() and kind is not None:
            body = path.read_bytes()
            name = f"{CONSOLE}/{path.relative_to(FOLDER).as_posix()}"
            pages[name] = PageFile(kind, body, gzip.compress(body, 9, mtime=0))
    pages[CONSOLE] = pages[f"{CONSOLE}/"] = pages.pop(f"{CONSOLE}/index.html")
    return pages


@cache
def headers() -> tuple[tuple[str, str], ...]:
    """Return the headers of every file.

    Nothing is loaded from elsewhere and nothing is evaluated. The one inline script, the names of
    the modules, is allowed by its hash.
    """
    (names,) = _INLINE.findall((FOLDER / "index.html").read_text(encoding="utf-8"))
    digest = base64.b64encode(hashlib.sha256(names.encode()).digest()).decode()
    policy = (
        f"default-src 'self'; script-src 'self' 'sha256-{digest}'; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )
    return (
        ("content-security-policy", policy),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-cache"),
        ("vary", "accept-encoding"),
    )
