"""Commands of ours as child processes, each with a limit on its time."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.runner.processes import last_words
from services.local.tether import tethered
from services.runtime.rooms import child_environment, module_command

_GRACE = 20.0
"""Seconds in which a command that was interrupted writes down what it has."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def headway(*arguments: str) -> list[str]:
    """Return the ``headway`` command, run by this Python."""
    return module_command("cli", *arguments)


def run_within(command: Sequence[str], seconds: float, log: Path) -> str:
    """Run a command; return why it did not end well, or "".

    At the limit it gets SIGINT, as from Ctrl-C, then SIGKILL. Its output is in ``log``.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            tethered([*command]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**child_environment(), **OFFLINE},
            start_new_session=True,
        )
        try:
            status = process.wait(max(1.0, seconds))
        except subprocess.TimeoutExpired:
            _interrupt(process)
            return f"it took over {seconds:.0f} s and was stopped"
        finally:
            _kill_group(process)
    return "" if status == 0 else f"exit {status}: {last_words(log)}"


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill what the command may have left behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()
