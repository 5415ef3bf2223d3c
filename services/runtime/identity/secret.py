"""The cluster's secret, and the proof of knowing it that every call between services carries.

Services prove it where they have no certificates, on one machine. The proof is an HMAC over the
port that is called: whoever takes the port of a service that has died learns nothing that opens
another port.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from headway.errors import Code, HeadwayError
from services.runtime.identity.private_file import read_private

_NUM_BYTES = 32
_AGENT = "headway-proof/"
"""Begins the user agent of our channels, which carries the proof.

gRPC sends the user agent with every call. Interceptors of a channel would copy every message.
"""


def default_secret_file(cluster: str) -> Path:
    """Return the file that services of this user share if they are given none."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "headway" / "secrets" / cluster


def load_secret(path: Path) -> bytes:
    """Return the secret, made at the first call; FAILED_PRECONDITION if it is no secret."""
    if not path.exists():
        _make(path)
    text = read_private(path, "--cluster-secret-file").decode(errors="replace").strip()
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) < _NUM_BYTES:
        message = f"{path} holds no cluster secret: remove it, and a new one is made"
        raise HeadwayError(Code.FAILED_PRECONDITION, message)
    return secret


def _make(path: Path) -> None:
    """Write a random secret, for its owner alone; keep what another process wrote meanwhile."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(_NUM_BYTES) + "\n")
        try:
            os.link(beside, path)
        except FileExistsError:
            pass
        finally:
            beside.unlink()
    except OSError as error:
        message = (
            f"cannot write the cluster's secret to {path} ({error.strerror}): "
            "give --cluster-secret-file FILE, or certificates"
        )
        raise HeadwayError(Code.FAILED_PRECONDITION, message) from error


def user_agent(secret: bytes, address: str) -> str:
    """Return the user agent of a channel to ``address``."""
    return _AGENT + _proof(secret, address.rpartition(":")[2])


def given_proof(metadata: Iterable[tuple[str, Any]]) -> str:
    """Return the proof that a call carries, "" without one."""
    agent = next((str(value) for key, value in metadata if key == "user-agent"), "")
    return agent.partition(" ")[0].removeprefix(_AGENT) if agent.startswith(_AGENT) else ""


def is_proof(proof: str, secret: bytes, port: str) -> bool:
    """Return whether ``proof`` proves knowledge of the secret to the server at ``port``."""
    return hmac.compare_digest(proof.encode(), _proof(secret, port).encode())


@lru_cache(maxsize=256)  # of the ports of one cluster
def _proof(secret: bytes, port: str) -> str:
    return hmac.digest(secret, f"headway {port}".encode(), "sha256").hex()
