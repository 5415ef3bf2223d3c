"""Huge pages for memory: every pass reads all of a model's weights.

glibc requests them if told before the process starts (tunable ``glibc.malloc.hugetlb``, from 2.35).
The kernel grants them unless ``transparent_hugepage`` is ``never``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

VARIABLE = "GLIBC_TUNABLES"
TUNABLE = "glibc.malloc.hugetlb"


def with_huge_pages(environ: Mapping[str, str]) -> dict[str, str] | None:
    """Return the environment that requests huge pages; None if it has a setting already."""
    tunables = environ.get(VARIABLE, "")
    if TUNABLE in tunables:
        return None
    return {**environ, VARIABLE: ":".join(filter(None, (tunables, f"{TUNABLE}=1")))}


def restart_with_huge_pages() -> None:
    """Restart this process with huge pages (Linux only); return if that is not possible."""
    environ = with_huge_pages(os.environ)
    if sys.platform == "linux" and environ is not None:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)
