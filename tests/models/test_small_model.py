"""The committed model: it loads, answers the documented prompts and varies in length."""

from pathlib import Path

import pytest

from models.evaluate import MODEL, DecodedExample, decode_all
from models.tasks import explain_add, explain_chain, explain_count, explain_sort

EXAMPLES = [
    explain_add([17, 25, 8]),
    explain_sort([5, 3, 9]),
    explain_count("r", "strawberry"),
    explain_chain(5, [("+", 3), ("*", 2), ("-", 4)]),
    explain_count("a", "cat"),
    explain_add([83, 12, 57, 40, 96, 5, 71, 28, 64, 33, 19, 88, 2, 45, 76, 61, 90, 37, 14, 52]),
]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, DecodedExample]:
    return {each.example.prompt: each for each in decode_all(MODEL, EXAMPLES)}


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("Add 17, 25, 8.", "50"),
        ("Sort 5, 3, 9.", "3, 5, 9"),
        ("Count the letter r in strawberry.", "3"),
    ],
)
def test_the_answer_after_the_thinking_is_exact(
    outcomes: dict[str, DecodedExample], prompt: str, answer: str
) -> None:
    outcome = outcomes[prompt]
    thinking, _, rest = outcome.completion.partition("</think>\n\n")
    assert outcome.ended
    assert thinking.startswith("<think>\n")
    assert rest == answer


def test_output_lengths_spread_thirtyfold(outcomes: dict[str, DecodedExample]) -> None:
    lengths = [each.tokens for each in outcomes.values() if each.ended]
    assert len(lengths) == len(EXAMPLES)
    assert max(lengths) >= 30 * min(lengths)


def test_the_weights_are_small() -> None:
    assert sum(each.stat().st_size for each in Path(MODEL).iterdir()) < 20_000_000
