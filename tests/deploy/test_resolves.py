"""``make resolves``: what CI asks a package index, and which of its answers are red."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.fakes.compose_files import ROOT

UV = """#!/bin/sh
echo "$@" >> {log}
env | grep -E '^(PIP|UV)_' >> {environment}
case "$*" in {fails}) echo "{message}" >&2; exit {status};; esac
"""
"""A resolver that fails where its arguments fit a pattern."""


STEPS = ("make resolves", ".ci/up", "make test ")


def resolves(
    folder: Path, *, fails: str = "nowhere", message: str = "", status: int = 1
) -> subprocess.CompletedProcess[str]:
    """Run the script with such a resolver, in a shell where much is configured."""
    uv = folder / "uv"
    files = {"log": folder / "log", "environment": folder / "environment"}
    uv.write_text(UV.format(**files, fails=fails, message=message, status=status))
    uv.chmod(0o755)
    own = {"PIP_FIND_LINKS": "/wheels", "PIP_CONSTRAINT": "/own.txt", "UV_INDEX_URL": "file:///own"}
    return asked(uv, {**os.environ, **own})


def asked(uv: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / ".ci" / "resolves"), str(uv)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_every_extra_and_the_lock_are_resolved_under_the_constraints(tmp_path: Path) -> None:
    done = resolves(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "every extra and the lock resolve" in done.stdout
    _, *calls = (tmp_path / "log").read_text().splitlines()
    assert all("--constraints constraints.txt" in call for call in calls)
    versions = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    oldest = versions.removeprefix(">=")
    of_extras = [call for call in calls if call.endswith("--all-extras pyproject.toml")]
    assert any(f"--python-version {oldest} " in call for call in of_extras)
    assert any(call.endswith("pyproject.toml requirements.lock") for call in calls)


def test_nothing_that_the_machine_has_configured_counts(tmp_path: Path) -> None:
    resolves(tmp_path)
    names = {line.partition("=")[0] for line in (tmp_path / "environment").read_text().splitlines()}
    assert names == {"PIP_CONFIG_FILE", "UV_NO_CONFIG", "UV_CACHE_DIR"}
    assert "PIP_CONFIG_FILE=/dev/null" in (tmp_path / "environment").read_text()


@pytest.mark.parametrize("what", ["*--all-extras*", "*requirements.lock*"])
def test_what_does_not_resolve_is_red_and_says_why(what: str, tmp_path: Path) -> None:
    done = resolves(tmp_path, fails=what, message="there is no version of torch==2.13.0+cpu")
    assert done.returncode == 1
    assert "torch==2.13.0+cpu" in done.stderr
    assert "resolve with" not in done.stdout


def test_without_an_index_it_says_that_nothing_was_checked(tmp_path: Path) -> None:
    done = resolves(tmp_path, fails="*probe.in*", message="connection refused", status=2)
    assert done.returncode == 0
    assert "NOT CHECKED: the public package index cannot be reached" in done.stdout
    assert "connection refused" in done.stderr
    assert len((tmp_path / "log").read_text().splitlines()) == 1


def test_without_a_resolver_it_says_that_nothing_was_checked(tmp_path: Path) -> None:
    done = asked(tmp_path / "uv", dict(os.environ))
    assert done.returncode == 0
    assert "NOT CHECKED: uv could not be installed" in done.stdout


def test_no_pin_is_a_build_that_no_public_index_serves() -> None:
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    assert [pin for pin in pins if "+" in pin] == []


def test_ci_runs_both_commands_of_the_readme_in_their_order() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    order = [next(n for n, line in enumerate(lines) if line.startswith(step)) for step in STEPS]
    assert order == sorted(order)
    assert "\nmake up ARGS=" in (ROOT / ".ci" / "up").read_text()
