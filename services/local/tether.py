"""``python tether.py PARENT COMMAND…``: become COMMAND, and end when process PARENT ends.

Run as a script between fork and exec, where a parent with threads must run no Python of its
own: it asks the kernel to be killed with its parent (Linux alone; elsewhere it does nothing)
and executes the command, under the same process id. Imports nothing of ours, so that it takes
a few milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def tethered(command: list[str]) -> list[str]:
    """Return ``command`` such that it ends with this process, even where this one is killed."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends (Linux)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it had ended before we asked
        os._exit(1)


def main(parent: int, command: list[str]) -> None:
    """Does not return. SIGINT ends the command, also where a shell's background job ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        end_with(parent)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
