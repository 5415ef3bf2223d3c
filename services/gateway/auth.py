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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from headway.errors import Code, HeadwayError, invalid
from headway.request import CLIENT_ID_END
from headway.service_class import NO_QUOTA, Quota, ServiceClasses
from headway.tables import refuse_others
from services.runtime.identity.private_file import require_own
from services.runtime.logs import get_logger

_NAME = r"[A-Za-z0-9._-]{1,64}"
_LINE = re.compile(
    rf"(?P<name>{_NAME}):(?P<digest>[0-9a-f]{{64}})(?P<operator>:operator)?"
    rf"(?P<options>(?::classes={_NAME}(?:,{_NAME})*|:[a-z-]+={_NAME})*)"
)
_SECONDS_BETWEEN_LOOKS = 1.0
KEY_CLIENT = "key "
"""The prefix of a key's name where clients are counted."""
ADDRESS_CLIENT = "address "
"""The prefix of an address where clients are counted."""
_LIMITS = {
    "requests": "requests",
    "waiting": "waiting",
    "tokens-per-minute": "tokens_per_minute",
}
KEY_OPTIONS = ("tenant", "share", "class", "classes", *_LIMITS)
"""Options of a line in a key file."""
_DRAWN = re.compile(r"(chatcmpl|cmpl|gen)-[0-9a-f]{16}")
MAX_ID_CHARS = 80
_CLIENT_ID = re.compile(rf"[A-Za-z0-9._:/=+@-]{{1,{MAX_ID_CHARS}}}")


def new_key() -> str:
    """Draw a fresh API key."""
    return "hw-" + secrets.token_urlsafe(32)


def check_client_id(given: str, field: str = "x-request-id") -> str:
    """Return a client's own id of a request; INVALID_ARGUMENT for one that is no such id."""
    if given and not _CLIENT_ID.fullmatch(given):
        limit = f"1 to {MAX_ID_CHARS} letters, digits and . _ : / = + @ -"
        raise invalid(field, given[:100], limit)
    return given


def key_line(
    name: str, key: str, *, operator: bool = False, options: Mapping[str, object] | None = None
) -> str:
    """Return a key's line in a key file, with options such as ``tenant``."""
    line = f"{name}:{hashlib.sha256(key.encode()).hexdigest()}{':operator' if operator else ''}"
    line += "".join(f":{option}={value}" for option, value in (options or {}).items())
    match = _LINE.fullmatch(line)
    if match is None:
        message = (
            f"key name {name!r} and options must be 1 to 64 letters, digits, dots, dashes or "
            "underscores; classes are such names with commas between them"
        )
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="name")
    _key_of(match)
    return line


class Key(NamedTuple):
    """One accepted key."""

    digest: bytes
    is_operator: bool = False
    tenant: str = ""
    """The tenant it belongs to; the key's own name unless given."""
    share: float = 1.0
    """The tenant's share, relative to others'."""
    service_class: str = ""
    """The class of requests that ask for none."""
    classes: tuple[str, ...] = ()
    """The classes that requests may ask for besides; (): any."""
    quota: Quota = NO_QUOTA


NO_KEY = Key(b"")


class KeyRing:
    """The accepted API keys; without any, every caller is accepted, and is an operator.

    ``fair_clients``: then every address is a tenant of its own, else all are one, "".
    The file is read again when it changes. One that cannot be read then changes nothing; one
    without keys lets nobody in.
    """

    def __init__(
        self,
        file: Path | None = None,
        classes: ServiceClasses | None = None,
        draw: Callable[[int], bytes] = secrets.token_bytes,
        *,
        fair_clients: bool = False,
    ) -> None:
        self._draw = draw
        self._tells_addresses_apart = fair_clients and file is None
        self._file = file
        self._classes = classes
        self._keys: Mapping[str, Key] = {}
        self._seen: tuple[int, ...] = ()
        self._checked_at = 0.0
        if file is not None:
            try:
                self._seen, self._keys = _state_of(file), self._read(file)
            except (OSError, UnicodeDecodeError) as error:
                message = f"the API keys' file {file} cannot be read: {error}"
                raise HeadwayError(Code.INVALID_ARGUMENT, message) from error
            if not self._keys:
                message = f"{file} holds no key; make one with `headway key`"
                raise HeadwayError(Code.INVALID_ARGUMENT, message)

    @classmethod
    def load(cls, file: Path | None, classes: ServiceClasses | None = None) -> KeyRing:
        """Read lines of ``name:sha256hex``; skip blank lines and ``#`` comments.

        ``:operator`` after the digest makes a key an operator's. INVALID_ARGUMENT for a file
        without keys, with two of one name, with other lines, with a class that is not one of
        ``classes`` (None: with any), or that everybody may read.
        """
        return cls(file, classes)

    def check(self, authorization: str) -> str:
        """Return the key's name, "" where none is required; UNAUTHENTICATED without a good one."""
        if self._file is None:
            return ""
        self._read_again(self._file)
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            message = "no API key was given; send it as `Authorization: Bearer <key>`"
            message += " (to /v1/messages also as x-api-key)"
            raise HeadwayError(Code.UNAUTHENTICATED, message)
        digest = hashlib.sha256(key.strip().encode("utf-8", "replace")).digest()
        matches = [n for n, k in self._keys.items() if hmac.compare_digest(digest, k.digest)]
        if not matches:
            message = "the API key is not known here; check it, or ask the operator for one"
            raise HeadwayError(Code.UNAUTHENTICATED, message)
        return matches[0]

    def of_client(self, client: str) -> Key:
        """Return the key by which a client is counted; one without limits where it has none."""
        if self._tells_addresses_apart:
            return NO_KEY._replace(tenant=client.removeprefix(ADDRESS_CLIENT))
        return self._keys.get(client.removeprefix(KEY_CLIENT), NO_KEY)

    def is_operator(self, name: str) -> bool:
        """Return whether a caller of this name may see what concerns others."""
        return self._file is None or (name in self._keys and self._keys[name].is_operator)

    def knows_operator(self, authorization: str) -> bool:
        """Return whether it has an operator's key."""
        try:
            return self.is_operator(self.check(authorization))
        except HeadwayError:
            return False

    # --- whose request is it? ---------------------------------------------------------

    def new_id(self, kind: str, name: str, given: str = "") -> str:
        """Return a new request id, which only the key of this name owns.

        It begins with the id that its client has ``given``, if any.
        """
        drawn = self._draw(8).hex()
        if given:
            return f"{given}{CLIENT_ID_END}{self._mark(name, given)}{drawn[:8]}"
        return f"{kind}-{drawn}{self._mark(name, drawn)}"

    def find_own(self, name: str, request_id: str) -> str:
        """Return the id, or its beginning, of this key's request that an id names.

        A client's own id names that client's requests alone. PERMISSION_DENIED for an id that we
        drew for another key, unless the key is an operator's.
        """
        if CLIENT_ID_END in request_id or self.is_operator(name) or _DRAWN.match(request_id):
            self.require_owner(name, request_id)
            return request_id
        return f"{request_id}{CLIENT_ID_END}{self._mark(name, request_id)}"

    def require_owner(self, name: str, request_id: str) -> None:
        """Raise PERMISSION_DENIED unless the request is this key's, or the key an operator's."""
        drawn, end, rest = request_id.partition(CLIENT_ID_END)
        if not end:
            tail = request_id.partition("-")[2]
            drawn, rest = tail[:16], tail[16:]
        mark, sent_mark = self._mark(name, drawn), rest[:16].encode("utf-8", "replace")
        if self.is_operator(name) or hmac.compare_digest(sent_mark, mark.encode()):
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

    def _read(self, file: Path) -> Mapping[str, Key]:
        keys = _read_keys(file)
        if self._classes is not None:
            _require_classes(file, keys, self._classes)
        return keys

    def _read_again(self, file: Path) -> None:
        """Read the file again if it has changed; look at it once a second at most."""
        if time.monotonic() < self._checked_at + _SECONDS_BETWEEN_LOOKS:
            return
        self._checked_at = time.monotonic()
        try:
            seen = _state_of(file)
            if seen != self._seen:
                self._keys = self._read(file)
                tell = get_logger().info if self._keys else get_logger().warning
                tell("keys_read", num_keys=len(self._keys))
            self._seen = seen
        except (OSError, UnicodeDecodeError, HeadwayError) as error:
            get_logger().error("keys_unchanged", reason=str(error))


def _require_classes(file: Path, keys: Mapping[str, Key], classes: ServiceClasses) -> None:
    for name, key in keys.items():
        try:
            for each in (key.service_class, *key.classes):
                classes.find(each)
        except HeadwayError as error:
            message = f"{file}, key {name}: {error.message}"
            raise HeadwayError(Code.INVALID_ARGUMENT, message) from error


def _key_of(line: re.Match[str]) -> Key:
    """Return the key of a line; HeadwayError for an option that is none."""
    said = [each.split("=", 1) for each in line["options"].split(":")[1:]]
    options = dict(said)
    refuse_others("a key", options, KEY_OPTIONS)
    if len(options) < len(said):
        message = f"an option is given twice: {', '.join(name for name, _ in said)}; give each once"
        raise HeadwayError(Code.INVALID_ARGUMENT, message)
    limits = {
        name: _whole(limit, options[limit]) for limit, name in _LIMITS.items() if limit in options
    }
    return Key(
        bytes.fromhex(line["digest"]),
        bool(line["operator"]),
        options.get("tenant", line["name"]),
        float(_whole("share", options.get("share", "1"))),
        options.get("class", ""),
        tuple(options["classes"].split(",")) if "classes" in options else (),
        Quota(**limits),
    )


def _whole(name: str, value: str) -> int:
    if not value.isdecimal() or not 1 <= int(value) < 2**31:
        raise invalid(name, value, "a whole number from 1 to 2^31 - 1")
    return int(value)


def _state_of(file: Path) -> tuple[int, ...]:
    status = file.stat()
    return status.st_mtime_ns, status.st_ino, status.st_size, status.st_mode


def _read_keys(file: Path) -> Mapping[str, Key]:
    keys: dict[str, Key] = {}
    with file.open(encoding="utf-8") as opened:
        status, text = os.fstat(opened.fileno()), opened.read()
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            message = f"{file}, line {number}: want name:sha256hex, as `headway key` prints it"
            raise HeadwayError(Code.INVALID_ARGUMENT, message)
        if match["name"] in keys:
            message = (
                f"{file}, line {number}: there is a key {match['name']} already; give this one a "
                "name of its own, and the same tenant"
            )
            raise HeadwayError(Code.INVALID_ARGUMENT, message)
        try:
            keys[match["name"]] = _key_of(match)
        except HeadwayError as error:
            message = f"{file}, line {number}: {error.message}"
            raise HeadwayError(Code.INVALID_ARGUMENT, message) from error
    if status.st_mode & stat.S_IROTH:
        message = f"{file} can be read by every user of this machine: run `chmod o-rwx {file}`"
        raise HeadwayError(Code.INVALID_ARGUMENT, message)
    require_own(status, file)
    return keys
