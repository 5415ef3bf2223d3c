"""The layout: tests alone, names once, classes that a reader can hold."""

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


ROOMS = ("headway", "services", "bench", "proof", "cli", "models", "engines")
MOST_FIELDS = 20
FLAT_BY_NATURE = {
    "Profile": "the fields of a profile's file",
    "GatewayConfig": "the flags of a command line",
}


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


def test_no_class_has_more_fields_than_a_reader_can_hold() -> None:
    large = {node.name for _, node in _classes() if len(_fields(node)) > MOST_FIELDS}
    assert large == set(FLAT_BY_NATURE)


def _fields(of: ast.ClassDef) -> set[str]:
    """Return the names of a class's declared fields and of what its ``__init__`` sets."""
    fields = {
        node.target.id
        for node in of.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and "ClassVar" not in ast.unparse(node.annotation)
    }
    inits = (n for n in of.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    for init in inits:
        fields |= {
            node.attr
            for node in ast.walk(init)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and ast.unparse(node.value) == "self"
        }
    return fields
