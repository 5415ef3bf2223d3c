"""Scenario files: blocks of commands, ``----``, and the actions that follow.

Lines that begin with ``#`` are comments. With ``HEADWAY_REWRITE_SCENARIOS=1`` a test writes the
actions that it sees into the file; read the difference before you commit it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

REWRITES = os.environ.get("HEADWAY_REWRITE_SCENARIOS") == "1"


def words_of(line: str) -> tuple[str, list[str], dict[str, str]]:
    """Split a command into its name, its plain words and its ``name=value`` options."""
    name, *words = shlex.split(line)
    options = dict(word.split("=", 1) for word in words if "=" in word)
    return name, [word for word in words if "=" not in word], options


def play(text: str, run: Callable[[str], str]) -> str:
    """Run every command; return the file as it should read. ``run`` returns "" for no action."""
    blocks = []
    for block in text.strip().split("\n\n"):
        lines = block.split("\n")
        comments = [line for line in lines if line.startswith("#")]
        commands = [line for line in lines if not line.startswith("#")]
        if not commands:
            blocks.append("\n".join(comments))
            continue
        commands = commands[: commands.index("----")] if "----" in commands else commands
        shown = [said for line in commands if (said := run(line))]
        blocks.append("\n".join([*comments, *commands, "----", *(shown or ["nothing"])]))
    return "\n\n".join(blocks) + "\n"


def check(path: Path, run: Callable[[str], str]) -> None:
    """Play a file and compare, or rewrite it."""
    text = path.read_text()
    played = play(text, run)
    if REWRITES:
        path.write_text(played)
    assert played == text or REWRITES
