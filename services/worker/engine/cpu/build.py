"""The build of ``kernels.cpp`` for this machine's processor, and its loading.

The first start builds it, as Triton does for a GPU, and keeps it in the user's cache. Processes
that start together may each build it; the results are the same.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import structlog

_FOLDER = Path(__file__).parent
_SOURCE = _FOLDER / "kernels.cpp"
_FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
    *(("-mprefer-vector-width=512",) if platform.machine() in ("x86_64", "AMD64") else ()),
)
_COMPILERS = ("c++", "g++", "clang++")
_TIMEOUT_S = 120
_log = structlog.get_logger(__name__)


@cache
def library() -> ctypes.CDLL | None:
    """Return the kernels; None, with a warning, if this machine cannot build them."""
    try:
        return _load()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", "") or str(error)
        _log.warning("no compiled kernels: torch's operators are used", reason=detail[-500:])
        return None


def _load() -> ctypes.CDLL:
    command = (*_compiler(), *_FLAGS)
    try:
        return ctypes.CDLL(str(_built(command, _own_folder())))
    except (
        OSError,
        RuntimeError,
    ) as error:  # there is no folder to keep it in, or another system built it
        _log.info("compiled kernels are not kept", reason=str(error))
    with tempfile.TemporaryDirectory() as name:
        return ctypes.CDLL(str(_built(command, Path(name))))


def _compiler() -> list[str]:
    """Return the compiler's command: ``CXX`` if it is set."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    command = chosen or [path for name in _COMPILERS if (path := shutil.which(name))][:1]
    if not command:
        raise FileNotFoundError("no C++ compiler: install g++, or set CXX to one")
    return command


def _own_folder() -> Path:
    """Return the folder of the cache; OSError if others could put a library there."""
    cache_folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(cache_folder).resolve() / "headway" / "kernels"
    for each in (folder.parent, folder):
        each.mkdir(parents=True, exist_ok=True, mode=0o700)
    for each in (folder, *folder.parents):
        if _others_may_change(each.stat()):
            raise PermissionError(f"users other than this one may change {each}")
    return folder


def _others_may_change(status: os.stat_result) -> bool:
    """Return whether others may change a folder; a user's own group counts as the user."""
    if status.st_uid not in (0, os.getuid()):
        return True
    others = stat.S_IWOTH if status.st_gid in (0, os.getgid()) else stat.S_IWGRP | stat.S_IWOTH
    return bool(status.st_mode & others) and not status.st_mode & stat.S_ISVTX


def _built(command: tuple[str, ...], folder: Path) -> Path:
    """Return the library in that folder; build it if it is missing."""
    built = folder / f"kernels-{_fingerprint(command)}.so"
    if not built.exists():
        _log.info("building_kernels", compiler=command[0])
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".so", delete=False) as scratch:
            pass
        try:
            subprocess.run(
                [*command, str(_SOURCE), "-o", scratch.name],
                check=True,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
            )
            os.replace(scratch.name, built)  # several processes may build it at once
        finally:
            Path(scratch.name).unlink(missing_ok=True)
    return built


def _fingerprint(command: tuple[str, ...]) -> str:
    """Return a hash of sources, flags and processor: machines may share a cache."""
    about = hashlib.sha256()
    for source in (_SOURCE, *sorted(_FOLDER.glob("*.h"))):
        about.update(source.read_bytes())
    for part in (*command, sys.platform, platform.machine(), _processor()):
        about.update(part.encode() + b"\0")
    return about.hexdigest()[:16]


def _processor() -> str:
    """Return the processor's instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(sorted({line for line in lines if line.startswith(("flags", "Features"))}))
