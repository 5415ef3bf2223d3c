"""The list: each mutation breaks one rule that a promise rests on, in one line."""

from __future__ import annotations

from proof.mutants.cores import CORES
from proof.mutants.mutation import Mutation
from proof.mutants.shells import SHELLS

MUTATIONS = (*CORES, *SHELLS)


def find(name: str) -> Mutation:
    """Return the mutation of this name; StopIteration for another."""
    return next(each for each in MUTATIONS if each.name == name)
