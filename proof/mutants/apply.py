"""``python -m proof.mutants.apply NAME (tests FILE… | seeds A B)``: live with one.

The mutation is made as the module is imported: no file changes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from proof.mutants.mutation import Mutation, find, mutated

CAUGHT, SURVIVED = 3, 4
"""The process's way to end; Python's own errors end it otherwise."""
_LONGEST_TEST = 90
"""Seconds after which a test has failed: it may wait for what the mutation has taken away."""


class _Loader(SourceFileLoader):
    """Loads one module from its mutated source, never from bytecode."""

    mutation: Mutation

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        return self.source_to_code(mutated(self.mutation, source).encode(), self.path)


class _Finder(MetaPathFinder):
    """Finds the module of one mutation before anybody else does."""

    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation
        self._module = mutation.file.removesuffix(".py").replace("/", ".")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        spec = PathFinder.find_spec(fullname, path)
        assert spec is not None
        assert spec.origin is not None
        loader = _Loader(fullname, spec.origin)
        loader.mutation = self._mutation
        spec.loader = loader
        return spec


def _fails_tests(files: Sequence[str]) -> bool:
    import pytest

    options = ["-x", "-q", "-p", "no:cacheprovider", "-n", "0", f"--timeout={_LONGEST_TEST}"]
    ended = pytest.main([*options, *files])
    if ended not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest could not run {', '.join(files)}: {ended!r}")
    return ended is pytest.ExitCode.TESTS_FAILED


def _breaks_promise(first: int, last: int) -> bool:
    from proof.vopr.draw import draw
    from proof.vopr.history import run

    for seed in range(first, last):
        violations = run(draw(seed)).violations
        if violations:
            print(f"seed {seed}: {violations[0]}")
            return True
    return False


def main(argv: Sequence[str]) -> int:
    """Return ``CAUGHT`` or ``SURVIVED``."""
    name, what, *rest = argv
    sys.meta_path.insert(0, _Finder(find(name)))
    is_caught = _fails_tests(rest) if what == "tests" else _breaks_promise(*map(int, rest))
    return CAUGHT if is_caught else SURVIVED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
