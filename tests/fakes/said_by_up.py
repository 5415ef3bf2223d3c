"""The words of ``headway up`` where it refuses."""

from __future__ import annotations

import pytest

from cli import main


def said_of(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """Return the one line that ``headway up`` prints before it exits with status 2."""
    try:
        status = main(["up", *flags])
    except SystemExit as left:  # argparse's way
        status = int(left.code or 0)
    assert status == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1
    return said.err
