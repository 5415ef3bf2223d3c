"""File descriptors for as many connections as the options allow."""

from __future__ import annotations

import resource

from headway.errors import Code, HeadwayError
from services.runtime.server import MOST_CLIENTS

_OTHERS = MOST_CLIENTS + 256  # services' connections, the store, files


def reserve(max_connections: int) -> None:
    """Raise the limit of this process; INVALID_ARGUMENT where the system does not let it."""
    needed = max_connections + _OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _reaches(soft, needed):
        return
    if not _reaches(hard, needed):
        message = (
            f"max_connections is {max_connections} and needs {needed} file descriptors; this "
            f"process may have {hard}: ask for at most {max(0, hard - _OTHERS)}, or raise the "
            "limit (ulimit -Hn)"
        )
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="max_connections")
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (OSError, ValueError) as error:
        message = f"max_connections is {max_connections}; cannot have {needed} files open: {error}"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="max_connections") from error


def _reaches(limit: int, needed: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= needed
