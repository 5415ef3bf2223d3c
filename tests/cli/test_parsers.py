"""What every parser has in common."""

from __future__ import annotations

import argparse
import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli import command_line, main
from services.local import refusals

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("cli", "bench", "models", "services", "engines")


def parsers_below(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and its subcommands', each with the options of its module."""
    module = getattr(parser, "_module", "")
    if module:
        parser._module = ""  # type: ignore[attr-defined]
        importlib.import_module(module).add_options(parser)
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers_below(below)


def test_no_command_takes_an_abbreviated_flag() -> None:
    every = list(parsers_below(command_line()))
    assert len(every) > 30
    assert [parser.prog for parser in every if parser.allow_abbrev] == []


def test_no_script_takes_an_abbreviated_flag() -> None:
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            for call in ast.walk(ast.parse(path.read_text())):
                if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("ArgumentParser"):
                    assert any(k.arg == "allow_abbrev" for k in call.keywords), path


def test_a_card_that_is_not_there_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(refusals, "_CARDS", (str(tmp_path / "nvidia[0-9]"),))
    assert main(["up", "--device", "cuda"]) == 2
    assert "--device is cuda, and this machine shows no card" in capsys.readouterr().err
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(refusals, "version", lambda package: "2.9.0+cpu")
    assert main(["up", "--device", "cuda"]) == 2
    assert "torch 2.9.0+cpu is built for CPUs alone" in capsys.readouterr().err
    assert main(["up", "--device", "gpu"]) == 2
    assert "--device is 'gpu'; it must be cpu, cuda or cuda:N" in capsys.readouterr().err
