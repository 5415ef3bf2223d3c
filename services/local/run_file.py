"""The run file: where to reach a cluster of ``headway up``, for commands without options."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from headway.errors import Code, HeadwayError

RUN_FILE = "cluster.json"
"""In the run folder, while the cluster runs; its owner alone may read it."""
SECRET_FILE = "cluster.secret"
"""In the run folder, made at the first start; ``headway explain scaling`` looks for it there."""
DEFAULT_URL = "http://127.0.0.1:8000"


class RunningCluster(NamedTuple):
    """Where a cluster is reached; ``store`` may hold the store's password."""

    url: str = DEFAULT_URL
    cluster: str = ""
    store: str = ""


def leave_run_file(folder: Path, cluster: RunningCluster, *, pid: int) -> None:
    """Write the addresses, in one piece."""
    path = folder / RUN_FILE
    beside = path.with_suffix(".new")
    with suppress(FileNotFoundError):
        beside.unlink()
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump({**cluster._asdict(), "pid": pid}, file)
    beside.rename(path)


def take_run_file_away(folder: Path) -> None:
    """Remove it."""
    with suppress(OSError):
        (folder / RUN_FILE).unlink()


def running_url(folder: Path) -> str:
    """Return the gateway's address of the cluster that runs there, else the usual one."""
    return running_cluster(folder).url


def running_cluster(folder: Path) -> RunningCluster:
    """Return the cluster that runs there; without one the usual gateway's address alone.

    PERMISSION_DENIED where others may have written the file: commands send keys to its address.
    """
    path = folder / RUN_FILE
    try:
        with path.open(encoding="utf-8") as file:
            _require_own(os.fstat(file.fileno()), path)
            fields = json.load(file)
            return RunningCluster(*(str(fields[name]) for name in RunningCluster._fields))
    except FileNotFoundError:
        return RunningCluster()
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        message = f"{path} cannot be read ({error}): give --url"
        raise HeadwayError(Code.UNAVAILABLE, message) from error


def _require_own(status: os.stat_result, path: Path) -> None:
    """Raise PERMISSION_DENIED for a file of another user, or that others may write."""
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        message = f"{path} is another user's, or others may write it: remove it, or give --url"
        raise HeadwayError(Code.PERMISSION_DENIED, message)
