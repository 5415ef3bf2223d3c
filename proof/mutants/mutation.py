"""One line of a file, and the line that breaks its rule: those of ``mutations.txt``.

A file begins with ``== PATH``. A paragraph is a mutation: the rule's breach in words, the line
without its indentation behind ``-``, the line in its place behind ``+``, and the nearest tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mutation:
    """One line of a file, without its indentation, and the line in its place.

    ``tests``: the files nearest to the rule.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _read(text: str) -> Iterator[Mutation]:
    file = ""
    for paragraph in text.strip().split("\n\n"):
        name, *lines = paragraph.split("\n")
        if name.startswith("== "):
            file = name.removeprefix("== ")
            continue
        old, new, tests = lines
        yield Mutation(
            name, file, old.removeprefix("- "), new.removeprefix("+ "), tuple(tests.split())
        )


MUTATIONS = tuple(_read(Path(__file__).with_name("mutations.txt").read_text("utf-8")))
"""Each breaks one rule that a promise rests on, in one line."""


def find(name: str) -> Mutation:
    """Return the mutation of this name; StopIteration for another."""
    return next(each for each in MUTATIONS if each.name == name)


def mutated(mutation: Mutation, source: str) -> str:
    """Return the source with the mutation; ValueError unless its line is there exactly once."""
    lines = source.splitlines(keepends=True)
    places = [n for n, line in enumerate(lines) if line.strip() == mutation.old]
    if len(places) != 1:
        raise ValueError(f"{mutation.file} has {mutation.old!r} {len(places)} times, not once")
    line = lines[places[0]]
    lines[places[0]] = line.replace(mutation.old, mutation.new)
    return "".join(lines)
