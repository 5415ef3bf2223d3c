"""Lengths drawn from what was seen: a list, or a column of a file."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import HeadwayError
from headway.workload.lengths import empirical, parse_lengths

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.floats(0.1, 9)), min_size=1, max_size=9),
    st.integers(0, 99),
)
def test_what_is_drawn_was_seen(seen: list[tuple[int, float]], seed: int) -> None:
    values, weights = [value for value, _ in seen], [weight for _, weight in seen]
    table = {"distribution": "empirical", "values": values, "weights": weights}
    draw, rng, again = parse_lengths("prompt", table), random.Random(seed), random.Random(seed)
    drawn = [draw(rng) for _ in range(20)]
    assert set(drawn) <= set(values)
    assert drawn == [draw(again) for _ in range(20)]


def test_values_come_as_often_as_their_weights_say() -> None:
    draw = empirical([10, 20, 30], [1, 0, 3])
    rng = random.Random(1)
    drawn = [draw(rng) for _ in range(20_000)]
    assert drawn.count(30) / len(drawn) == pytest.approx(0.75, abs=0.01)
    assert 20 not in drawn


@pytest.mark.parametrize("packed", [False, True])
def test_a_column_of_a_file_is_a_distribution(tmp_path: Path, packed: bool) -> None:
    text = "uid,answer_tokens\na,5\nb,7\n"
    if packed:
        (tmp_path / "answers.csv").write_bytes(gzip.compress(text.encode()))
        (tmp_path / "answers.csv").rename(tmp_path / "answers.csv.gz")
    else:
        (tmp_path / "answers.csv").write_text(text)
    name = "answers.csv.gz" if packed else "answers.csv"
    table = {"distribution": "empirical", "file": name, "column": "answer_tokens"}
    draw, rng = parse_lengths("answer", table, tmp_path), random.Random(2)
    assert {draw(rng) for _ in range(50)} == {5, 7}


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "with a file or with values"),
        ({"values": [], "weights": []}, "a list of at least one number"),
        ({"values": [1, "2"]}, "answer.values is '2'"),
        ({"values": [1, 2], "weights": [1]}, "as many as values (2)"),
        ({"values": [1, 2], "weights": [0, 0]}, "the sum of weights is 0"),
        ({"values": [1, -2]}, "values is -2.0"),
        ({"values": [1, 10**400]}, "a number under 1e308"),
        ({"values": [1, float("nan")]}, "a finite number"),
        ({"values": [1], "mean": 3}, "a key of answer is 'mean'"),
        ({"file": "nowhere.csv", "column": "x"}, "nowhere.csv"),
        ({"file": 3, "column": "x"}, "two texts"),
    ],
)
def test_what_cannot_be_drawn_from_is_refused(table: dict[str, object], said: str) -> None:
    with pytest.raises(HeadwayError) as refused:
        parse_lengths("answer", {"distribution": "empirical", **table})
    assert said in refused.value.message
    assert refused.value.message.startswith("answer")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("uid,tokens\na,5\n", "must be one of uid, tokens"),
        ("answer_tokens\nfive\n", "line 2: answer_tokens is 'five'"),
        ("answer_tokens\n", "has a header and no rows"),
        ("", "is empty"),
    ],
)
def test_a_column_that_is_none_is_refused_with_its_line(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "answers.csv").write_text(text)
    table = {"distribution": "empirical", "file": "answers.csv", "column": "answer_tokens"}
    with pytest.raises(HeadwayError) as refused:
        parse_lengths("answer", table, tmp_path)
    assert said in refused.value.message


def test_published_answer_lengths_are_a_distribution() -> None:
    file = DATA / "arena_hard_answer_tokens.csv.gz"
    if not file.exists():
        pytest.skip(f"{file.name} is not here")
    table = {"distribution": "empirical", "file": str(file), "column": "answer_tokens"}
    draw, rng = parse_lengths("answer", table), random.Random(3)
    assert all(draw(rng) >= 1 for _ in range(100))
