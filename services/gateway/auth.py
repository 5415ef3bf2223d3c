"""API keys: kept as SHA-256 digests, compared in constant time.

A key is 32 random bytes, so a plain digest cannot be searched for; no salt is needed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from headway.errors import Code, HeadwayError
from services.runtime.identity.private_file import require_own
from services.runtime.logs import get_logger

_LINE = re.compile(
    r"(?P<name>[A-Za-z0-9._-]{1,64}):(?P<digest>[0-9a-f]{64})(?P<operator>:operator)?"
)
_SECONDS_BETWEEN_LOOKS = 1.0


def new_key() -> str:
    """Draw a fresh API key."""
    return "hw-" + secrets.token_urlsafe(32)


def key_line(name: str, key: str, *, operator: bool = False) -> str:
    """Return a key's line in a key file."""
    line = f"{name}:{hashlib.sha256(key.encode()).hexdigest()}{':operator' if operator else ''}"
    if not _LINE.fullmatch(line):
        message = f"key name {name!r} must be 1 to 64 letters, digits, dots, dashes or underscores"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="name")
    return line


class Key(NamedTuple):
    """One accepted key: its digest, and whether it is an operator's."""

    digest: bytes
    is_operator: bool


class KeyRing:
    """The accepted API keys; without any, every caller is accepted, and is an operator.

    The file is read again when it changes. One that cannot be read then changes nothing.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._keys: Mapping[str, Key] = {}
        self._seen: tuple[int, ...] = ()
        self._checked_at = 0.0
        if file is not None:
            self._seen, self._keys = _state_of(file), _read_keys(file)

    @classmethod
    def load(cls, file: Path | None) -> KeyRing:
        """Read lines of ``name:sha256hex``; skip blank lines and ``#`` comments.

        ``:operator`` after the digest makes a key an operator's. INVALID_ARGUMENT for a file
        without keys, with other lines, or that everybody may read.
        """
        return cls(file)

    def check(self, authorization: str) -> str:
        """Return the key's name, "" where none is required; UNAUTHENTICATED without a good one."""
        if self._file is None:
            return ""
        self._read_again(self._file)
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            message = "no API key was given; send it as `Authorization: Bearer <key>`"
            raise HeadwayError(Code.UNAUTHENTICATED, message)
        shown = hashlib.sha256(key.strip().encode("utf-8", "replace")).digest()
        matches = [n for n, k in self._keys.items() if hmac.compare_digest(shown, k.digest)]
        if not matches:
            message = "the API key is not known here; check it, or ask the operator for one"
            raise HeadwayError(Code.UNAUTHENTICATED, message)
        return matches[0]

    def is_operator(self, name: str) -> bool:
        """Return whether a caller of this name may see what concerns others."""
        return self._file is None or (name in self._keys and self._keys[name].is_operator)

    # --- whose request is it? ---------------------------------------------------------

    def new_id(self, kind: str, name: str) -> str:
        """Return a new request id, which only the key of this name owns."""
        drawn = secrets.token_hex(8)
        return f"{kind}-{drawn}{self._mark(name, drawn)}"

    def require_owner(self, name: str, request_id: str) -> None:
        """Raise PERMISSION_DENIED unless the request is this key's, or the key an operator's."""
        drawn = request_id.partition("-")[2]
        mark, shown = self._mark(name, drawn[:16]), drawn[16:32].encode("utf-8", "replace")
        if self.is_operator(name) or hmac.compare_digest(shown, mark.encode()):
            return
        message = "only the key that sent a request, or an operator's, may ask about it"
        raise HeadwayError(Code.PERMISSION_DENIED, message)

    def _mark(self, name: str, drawn: str) -> str:
        """Return what proves that a key's owner drew this: every gateway with the file agrees."""
        key = self._keys.get(name)
        if key is None:
            return ""
        return hmac.new(key.digest, drawn.encode("utf-8", "replace"), "sha256").hexdigest()[:16]

    # --- the file ---------------------------------------------------------------------

    def _read_again(self, file: Path) -> None:
        """Read the file again if it has changed; look at it once a second at most."""
        if time.monotonic() < self._checked_at + _SECONDS_BETWEEN_LOOKS:
            return
        self._checked_at = time.monotonic()
        try:
            seen = _state_of(file)
            if seen != self._seen:
                self._keys = _read_keys(file)
                get_logger().info("keys_read", num_keys=len(self._keys))
            self._seen = seen
        except (OSError, UnicodeDecodeError, HeadwayError) as error:
            get_logger().error("keys_unchanged", reason=str(error))


def _state_of(file: Path) -> tuple[int, ...]:
    found = file.stat()
    return found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode


def _read_keys(file: Path) -> Mapping[str, Key]:
    keys: dict[str, Key] = {}
    with file.open(encoding="utf-8") as opened:
        status, text = os.fstat(opened.fileno()), opened.read()
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            message = f"{file}, line {number}: want name:sha256hex, as `headway key` prints it"
            raise HeadwayError(Code.INVALID_ARGUMENT, message)
        keys[found["name"]] = Key(bytes.fromhex(found["digest"]), bool(found["operator"]))
    if not keys:
        message = f"{file} holds no key; make one with `headway key`"
        raise HeadwayError(Code.INVALID_ARGUMENT, message)
    if status.st_mode & stat.S_IROTH:
        message = f"{file} can be read by every user of this machine: run `chmod o-rwx {file}`"
        raise HeadwayError(Code.INVALID_ARGUMENT, message)
    require_own(status, file)
    return keys
