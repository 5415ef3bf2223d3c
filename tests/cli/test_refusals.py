"""Every command that takes policies refuses a wrong one before it starts anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli import main
from services.worker.engines import known_engines

COMMANDS = (
    ("simulate", "chat-and-reasoning"),
    ("reproduce", "sbs"),
    ("demo",),
    ("up",),
)


@pytest.mark.parametrize("wrong", [("--policy", "batching=nope"), ("--set", "batching.nope=1")])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_wrong_policy_is_refused_in_one_sentence(
    command: tuple[str, ...],
    wrong: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    assert main([*command, *wrong]) == 2
    said = capsys.readouterr()
    assert "nope" in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert not said.out
    assert not list(tmp_path.iterdir())
    assert dict(os.environ) == before


def test_an_engine_that_plans_its_own_passes_has_one_unit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = '{"url": "http://127.0.0.1:9"}'
    roles = ("--prefill", "0", "--decode", "0", "--unified", "1")
    assert main(["up", "--engine", "openai", "--engine-args", url, *roles, "--dp", "2"]) == 2
    assert "--dp is 2; it must be 1 with engine openai" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "given",
    [
        ("--worker.deterministic",),
        ("--worker.kernels", "torch"),
        ("--worker.max-running", "4"),
        ("--worker.linger", "0.5"),
        ("--dtype", "float32"),
    ],
)
def test_options_that_the_engine_does_not_read_are_refused_by_name(
    given: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    url = '{"url": "http://127.0.0.1:9"}'
    assert main(["up", "--engine", "openai", "--engine-args", url, *given]) == 2
    named = f"--{given[0].removeprefix('--').removeprefix('worker.')} is"
    said = capsys.readouterr().err
    assert named in said
    assert "left out with engine openai, which does not read it" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif("vllm" in known_engines(), reason="vLLM is installed here")
@pytest.mark.parametrize("engine", ["vllm", "vllm-native"])
@pytest.mark.parametrize("command", ["demo", "up"])
def test_an_engine_that_is_not_installed_is_refused_in_one_sentence(
    command: str,
    engine: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([command, "--engine", engine]) in (1, 2)
    said = capsys.readouterr().err.strip()
    assert f"engine '{engine}' is not installed in this environment" in said
    assert len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir())
