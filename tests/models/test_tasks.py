"""The task families: prompt forms, traces that end right, and the held-out split."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.tasks import (
    CHAIN_MAX,
    TASKS,
    Example,
    correct,
    draw,
    explain_add,
    explain_chain,
    explain_count,
    explain_sort,
    held_out,
    held_out_examples,
)

numbers = st.lists(st.integers(0, 99), min_size=2, max_size=20)
any_task = st.sampled_from(sorted(TASKS))
FORMS = {
    "add": r"Add \d\d?(, \d\d?){1,19}\.",
    "sort": r"Sort \d\d?(, \d\d?){1,19}\.",
    "count": r"Count the letter [a-z] in [a-z]{3,12}\.",
    "chain": r"Start with \d\d?(, (add \d\d?|subtract \d\d?|double)){1,12}\.",
}


def last_line(example: Example) -> str:
    return example.reasoning.splitlines()[-1]


def test_the_documented_prompts_and_answers_are_exact() -> None:
    chain = explain_chain(5, [("+", 3), ("*", 2), ("-", 4)])
    made = [
        explain_add([17, 25, 8]),
        explain_sort([5, 3, 9]),
        explain_count("r", "strawberry"),
        chain,
    ]
    assert [(each.prompt, each.answer) for each in made] == [
        ("Add 17, 25, 8.", "50"),
        ("Sort 5, 3, 9.", "3, 5, 9"),
        ("Count the letter r in strawberry.", "3"),
        ("Start with 5, add 3, double, subtract 4.", "12"),
    ]


@given(numbers)
def test_adding_ends_at_the_sum(values: list[int]) -> None:
    example = explain_add(values)
    assert int(example.answer) == sum(values)
    assert int(last_line(example).split()[-1]) == sum(values)


@given(numbers)
def test_every_equation_of_a_sum_holds(values: list[int]) -> None:
    for left, right in re.findall(r"([\d+]+)=(\d+)", explain_add(values).reasoning):
        assert sum(map(int, left.split("+"))) == int(right)


def buckets(line: str) -> list[list[int]]:
    return [[int(n) for n in re.findall(r"[a-t](\d\d)", each)] for each in line.split(" ")]


@given(numbers)
def test_sorting_ends_in_order_after_a_pass_by_units_and_one_by_tens(values: list[int]) -> None:
    example = explain_sort(values)
    assert example.answer == ", ".join(map(str, sorted(values)))
    by_units, by_tens = map(buckets, example.reasoning.splitlines()[1:])
    assert by_units == [[n for n in values if n % 10 == digit] for digit in range(10)]
    assert by_tens == [sorted(n for n in values if n // 10 == digit) for digit in range(10)]


@given(st.sampled_from("abcr"), st.text("abcr", min_size=3, max_size=12))
def test_counting_ends_at_the_count(letter: str, word: str) -> None:
    example = explain_count(letter, word)
    assert int(example.answer) == word.count(letter)
    spelt = re.findall(r"[A-L]([a-z])(\d*)", example.reasoning)
    assert "".join(each for each, _ in spelt) == word
    assert [count for each, count in spelt if each == letter] == [
        str(place + 1) for place in range(word.count(letter))
    ]
    assert all(not count for each, count in spelt if each != letter)


@given(st.integers(), st.integers(1, 12))
def test_a_chain_stays_in_range_and_ends_at_its_value(seed: int, size: int) -> None:
    example = TASKS["chain"].make(random.Random(seed), size)
    value = int(re.findall(r"\d+", example.prompt)[0])
    for step in example.prompt[:-1].split(", ")[1:]:
        word, _, amount = step.partition(" ")
        value = {"add": value + int(amount or 0), "subtract": value - int(amount or 0)}.get(
            word, 2 * value
        )
        assert 0 <= value <= CHAIN_MAX
    assert int(example.answer) == int(last_line(example).split()[-1]) == value


@given(st.integers(), any_task)
def test_drawn_prompts_have_the_exact_form_and_are_never_held_out(seed: int, name: str) -> None:
    example = draw(random.Random(seed), name)
    assert re.fullmatch(FORMS[name], example.prompt)
    assert not held_out(example.prompt)
    assert example == draw(random.Random(seed), name)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_held_out_examples_are_distinct_repeatable_and_cover_all_sizes(name: str) -> None:
    examples = list(held_out_examples(name, 40, seed=3))
    assert examples == list(held_out_examples(name, 40, seed=3))
    assert all(held_out(each.prompt) for each in examples)
    assert len({each.prompt for each in examples}) == 40
    task = TASKS[name]
    assert {each.size for each in examples} == set(range(task.smallest, task.largest + 1))


def test_the_checker_wants_the_exact_answer_after_the_thinking() -> None:
    example = explain_add([1, 2])
    assert correct(example, "<think>\nanything\n</think>\n\n3")
    assert not correct(example, "<think>\nanything\n</think>\n\n4")
    assert not correct(example, "<think>\n3")
    assert not correct(example, "3")
