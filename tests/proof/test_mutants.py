"""The mutations fit the code, and what lives with one is told from what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from proof.mutants.__main__ import is_caught
from proof.mutants.mutation import MUTATIONS, Mutation, find, mutated

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_changes_one_line_that_is_there(mutation: Mutation) -> None:
    source = (ROOT / mutation.file).read_text()
    changed = mutated(mutation, source)
    compile(changed, mutation.file, "exec")
    pairs = zip(source.splitlines(), changed.splitlines(), strict=True)
    assert sum(before != after for before, after in pairs) == 1
    assert all((ROOT / file).is_file() for file in mutation.tests)


def test_a_mutation_whose_line_has_gone_is_refused() -> None:
    with pytest.raises(ValueError, match="0 times"):
        mutated(MUTATIONS[0], "pass\n")


def test_the_nearest_tests_catch_a_mutation_and_others_do_not() -> None:
    mutation = find("an end is repeated wrongly")
    assert is_caught(mutation, "tests", *mutation.tests)
    assert not is_caught(mutation, "tests", "tests/core/gateway/test_stream_ids.py")


def test_what_does_not_end_in_time_is_caught() -> None:
    mutation = find("an end is repeated wrongly")
    assert is_caught(mutation, "tests", "tests/core/gateway/test_stream_ids.py", patience=0.01)
