"""Files that hold a secret. A link counts as the file that it leads to."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from headway.errors import Code, HeadwayError


def read_private(path: Path, flag: str) -> bytes:
    """Return the contents; FAILED_PRECONDITION unless it is ours, closed to others and readable."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            contents = file.read()
    except OSError as error:
        message = f"cannot read {path} ({error.strerror}): see {flag}"
        raise HeadwayError(Code.FAILED_PRECONDITION, message) from error
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o007:
        message = f"{path} has mode {mode:04o}, open to every user of the machine: chmod 600 {path}"
        raise HeadwayError(Code.FAILED_PRECONDITION, message)
    require_own(status, path)
    return contents


def require_own(status: os.stat_result, path: Path) -> None:
    """Raise FAILED_PRECONDITION for another user's file: he may change what it says."""
    if status.st_uid not in (0, os.geteuid()):
        message = (
            f"{path} belongs to the user with id {status.st_uid}, who may change it: "
            f"chown {os.geteuid()} {path}"
        )
        raise HeadwayError(Code.FAILED_PRECONDITION, message)
