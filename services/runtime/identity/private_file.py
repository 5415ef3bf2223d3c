"""Files that hold a secret."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from headway.errors import Code, HeadwayError


def read_private(path: Path, flag: str) -> bytes:
    """Return the contents; FAILED_PRECONDITION if everybody may read it, or it cannot be read."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            contents = file.read()
    except OSError as error:
        message = f"cannot read {path} ({error.strerror}): see {flag}"
        raise HeadwayError(Code.FAILED_PRECONDITION, message) from error
    if mode & 0o007:
        message = f"{path} has mode {mode:04o}, open to every user of the machine: chmod 600 {path}"
        raise HeadwayError(Code.FAILED_PRECONDITION, message)
    return contents
