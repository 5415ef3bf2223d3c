"""API keys: made once, kept hashed, checked."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from cli.key import add_options
from headway.errors import Code, HeadwayError
from services.gateway.auth import KeyRing, key_line, new_key


def ring(tmp_path: Path, text: str) -> KeyRing:
    file = tmp_path / "keys"
    file.write_text(text)
    return KeyRing.load(file)


def test_a_key_lets_in_under_its_name(tmp_path: Path) -> None:
    key = new_key()
    keys = ring(tmp_path, f"# team\n\n{key_line('ann', key)}\n{key_line('bob', new_key())}\n")
    with pytest.raises(HeadwayError):
        keys.check("")
    assert keys.check(f"Bearer {key}") == "ann"
    assert keys.check(f"bearer  {key} ") == "ann"


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic x", "Bearer wrong", "Bearer é"])
def test_anything_else_is_unauthenticated(tmp_path: Path, header: str) -> None:
    keys = ring(tmp_path, key_line("ann", new_key()))
    with pytest.raises(HeadwayError) as caught:
        keys.check(header)
    assert caught.value.code is Code.UNAUTHENTICATED


def test_without_a_file_everybody_is_let_in() -> None:
    keys = KeyRing.load(None)
    assert keys.check("Bearer anything") == ""
    assert keys.check("") == ""


@pytest.mark.parametrize("text", ["", "# none\n", "ann:secret\n", "ann\n"])
def test_a_file_without_good_keys_is_refused_not_taken_for_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(HeadwayError, match="headway key"):
        ring(tmp_path, text)


def test_the_file_does_not_hold_the_key() -> None:
    key = new_key()
    assert key not in key_line("ann", key)
    assert len(key) > 40
    assert new_key() != key


def test_the_command_prints_a_key_and_the_line_that_lets_it_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    args = parser.parse_args(["ann"])
    assert args.run(args) == 0
    key, line = (row.rpartition(": ")[2] for row in capsys.readouterr().out.splitlines())
    assert ring(tmp_path, line).check(f"Bearer {key}") == "ann"


def test_the_command_refuses_a_name_that_would_break_the_file() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    args = parser.parse_args(["a:b"])
    assert args.run(args) == 2
