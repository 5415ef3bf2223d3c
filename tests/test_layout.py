"""The layout: tests alone, and names once."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent


def test_no_module_imports_a_test() -> None:
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            found += [
                f"{path.relative_to(TESTS)} imports {name}"
                for name in names
                if name.startswith("tests.") and name.rpartition(".")[2].startswith("test_")
            ]
    assert found == []


def test_no_two_files_of_tests_have_one_name() -> None:
    """Pytest imports them by their name alone."""
    names = Counter(path.name for path in TESTS.rglob("test_*.py"))
    assert [name for name, number in names.items() if number > 1] == []


ROOMS = (
    "headway",
    "services",
    "results",
    "bench",
    "studies",
    "planning",
    "proof",
    "cli",
    "models",
    "engines",
)


def _classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for room in ROOMS:
        for path in sorted((TESTS.parent / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    yield str(path.relative_to(TESTS.parent)), node


def test_no_public_class_name_stands_for_two_things() -> None:
    paths: dict[str, list[str]] = {}
    for path, node in _classes():
        if not node.name.startswith("_"):
            paths.setdefault(node.name, []).append(path)
    assert {name: found for name, found in paths.items() if len(found) > 1} == {}


def test_an_editable_install_shows_links_into_the_checkout() -> None:
    there = (TESTS.parent / ".editable").iterdir()
    shown = sorted(path for path in there if path.name != "__pycache__")
    assert [path.name for path in shown] == ["headway", "headway_launch.py"]
    assert [path.resolve().parent for path in shown] == [TESTS.parent] * 2
