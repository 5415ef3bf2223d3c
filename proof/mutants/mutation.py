"""One line of a file, and the line that breaks its rule."""

from __future__ import annotations

from dataclasses import dataclass


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


def mutated(mutation: Mutation, source: str) -> str:
    """Return the source with the mutation; ValueError unless its line is there exactly once."""
    lines = source.splitlines(keepends=True)
    places = [n for n, line in enumerate(lines) if line.strip() == mutation.old]
    if len(places) != 1:
        raise ValueError(f"{mutation.file} has {mutation.old!r} {len(places)} times, not once")
    line = lines[places[0]]
    lines[places[0]] = line.replace(mutation.old, mutation.new)
    return "".join(lines)
