"""A checkout runs where Headway is not installed: its packages on Python's path are enough."""

from __future__ import annotations

import importlib.metadata

import pytest

import cli


def test_a_checkout_without_an_installed_package_has_a_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert cli.main(["policies"]) == 0
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert "headway (not installed)" in capsys.readouterr().out
