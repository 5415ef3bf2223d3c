"""API keys: kept as SHA-256 digests, compared in constant time.

A key is 32 random bytes, so a plain digest cannot be searched for; no salt is needed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from headway.errors import Code, HeadwayError

_LINE = re.compile(r"(?P<name>[A-Za-z0-9._-]{1,64}):(?P<digest>[0-9a-f]{64})")


def new_key() -> str:
    """Draw a fresh API key."""
    return "hw-" + secrets.token_urlsafe(32)


def key_line(name: str, key: str) -> str:
    """Return a key's line in a key file."""
    line = f"{name}:{hashlib.sha256(key.encode()).hexdigest()}"
    if not _LINE.fullmatch(line):
        message = f"key name {name!r} must be 1 to 64 letters, digits, dots, dashes or underscores"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="name")
    return line


class KeyRing:
    """The accepted API keys; without any, every caller is accepted."""

    def __init__(self, digests: Mapping[str, bytes]) -> None:
        self._digests = dict(digests)

    @classmethod
    def load(cls, file: Path | None) -> KeyRing:
        """Read lines of ``name:sha256hex``; skip blank lines and ``#`` comments."""
        if file is None:
            return cls({})
        digests: dict[str, bytes] = {}
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            found = _LINE.fullmatch(line)
            if found is None:
                message = f"{file}, line {number}: want name:sha256hex, as `headway key` prints it"
                raise HeadwayError(Code.INVALID_ARGUMENT, message)
            digests[found["name"]] = bytes.fromhex(found["digest"])
        if not digests:
            message = f"{file} holds no key; make one with `headway key`"
            raise HeadwayError(Code.INVALID_ARGUMENT, message)
        return cls(digests)

    def check(self, authorization: str) -> str:
        """Return the key's name, "" where none is required; UNAUTHENTICATED without a good one."""
        if not self._digests:
            return ""
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            message = "no API key was given; send it as `Authorization: Bearer <key>`"
            raise HeadwayError(Code.UNAUTHENTICATED, message)
        shown = hashlib.sha256(key.strip().encode("utf-8", "replace")).digest()
        matches = [
            name for name, digest in self._digests.items() if hmac.compare_digest(shown, digest)
        ]
        if not matches:
            message = "the API key is not known here; check it, or ask the operator for one"
            raise HeadwayError(Code.UNAUTHENTICATED, message)
        return matches[0]
