"""Memory in huge pages: a model's weights are read from end to end in every pass.

glibc asks the kernel for them where it is told to before a process starts (its tunable
``glibc.malloc.hugetlb``, 2.35 on); the kernel gives them where it may (``transparent_hugepage`` is
not ``never``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

VARIABLE = "GLIBC_TUNABLES"
TUNABLE = "glibc.malloc.hugetlb"


def with_huge_pages(environ: Mapping[str, str]) -> dict[str, str] | None:
    """The environment that asks for them, None where it says something of them already."""
    told = environ.get(VARIABLE, "")
    if TUNABLE in told:
        return None
    return {**environ, VARIABLE: ":".join(filter(None, (told, f"{TUNABLE}=1")))}


def restart_with_huge_pages() -> None:
    """Become the same program in the same process, with them; Linux alone. Comes back if not."""
    environ = with_huge_pages(os.environ)
    if sys.platform == "linux" and environ is not None:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)
