"""Tools that are commands: run to their end, in a folder of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SECONDS = 280.0


def run_to_end(name: str, arguments: Sequence[str], folder: Path) -> str:
    """Return what a command of this environment printed; an error has the end of it."""
    command = [str(Path(sys.executable).with_name(name)), *arguments]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=folder,
        timeout=SECONDS,
        check=False,
    )
    print(done.stdout)
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        raise RuntimeError(f"exit {done.returncode}: {' '.join(lines[-2:])}")
    return done.stdout
