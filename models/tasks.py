"""The four task families: prompts, step-by-step reasoning, answers and the checker.

Everything here is a pure function of a seeded ``random.Random``; sizes count operands
(add, sort), letters (count) or steps (chain).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_ENGLISH_TEXT = """
cat dog sun run bee egg all add see too book tree moon door hill good seed feel
apple berry happy hello green river sleep three letter banana summer coffee little
street yellow orange puzzle button strawberry mississippi committee balloon success
raspberry blueberry occurred address assessment bookkeeper parallel necessary tomorrow
possession millennium accommodate aggressive embarrass addressee keeper serving model
thinking question answer machine language headway scheduler fairness request worker
reasoning patience latency cascade elephant giraffe kangaroo umbrella zucchini pizza
jazz queue rhythm sphinx oxygen quartz voyage window yogurt zebra keyboard mountain
"""
ENGLISH = tuple(_ENGLISH_TEXT.split())
_VOWELS, _CONSONANTS = "aeiou", "bcdfghjklmnprstvwyz"
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def _pronounceable(rng: random.Random, size: int) -> str:
    """Alternate consonants and vowels, sometimes doubling a letter."""
    letters: list[str] = []
    vowel = rng.random() < 0.3
    while len(letters) < size:
        letters.append(rng.choice(_VOWELS if vowel else _CONSONANTS))
        if rng.random() < 0.2:
            letters.append(letters[-1])
        vowel = not vowel
    return "".join(letters[:size])


def random_word(rng: random.Random, size: int) -> str:
    """Draw a word of exactly ``size`` letters of a-z."""
    kind = rng.random()
    english = [word for word in ENGLISH if len(word) == size]
    if kind < 0.1 and english:
        return rng.choice(english)
    if kind < 0.55:
        return _pronounceable(rng, size)
    alphabet = _ALPHABET if kind < 0.95 else rng.sample(_ALPHABET, rng.randint(1, 4))
    return "".join(rng.choice(alphabet) for _ in range(size))


LABELS = "abcdefghijklmnopqrst"  # one label per operand or step, so at most 20
LETTER_LABELS = "ABCDEFGHIJKL"  # one label per letter of a counted word, so at most 12
CHAIN_MAX = 999  # every value along a chain stays within 0..CHAIN_MAX
HELD_OUT_SHARE = 32  # one prompt in this many is held out, by the hash of the prompt


@dataclass(frozen=True)
class Example:
    """A problem with the reasoning that solves it and the exact answer text."""

    task: str
    size: int
    prompt: str
    reasoning: str
    answer: str


@dataclass(frozen=True)
class Task:
    """A family: its name, its smallest and largest size and the example of a given size."""

    name: str
    smallest: int
    largest: int
    make: Callable[[random.Random, int], Example]


def held_out(prompt: str) -> bool:
    """Return whether a prompt belongs to the held-out set and is never trained on."""
    digest = hashlib.sha256(prompt.encode()).digest()
    return int.from_bytes(digest[:4], "big") % HELD_OUT_SHARE == 0


def correct(example: Example, completion: str) -> bool:
    """Return whether a completion ends its thinking and then gives exactly the answer."""
    _, marker, rest = completion.partition("</think>")
    return bool(marker) and rest.strip() == example.answer


def _numbers(rng: random.Random, size: int) -> list[int]:
    """Draw ``size`` numbers of 0..99, some short lists being mostly single digits."""
    short = 0.6 if size <= 8 and rng.random() < 0.25 else 0.05
    return [rng.randrange(10) if rng.random() < short else rng.randrange(100) for _ in range(size)]


def _labelled(numbers: list[int]) -> str:
    """Rewrite a list with a label beside each number, two digits each."""
    return " ".join(f"{label}{n:02d}" for label, n in zip(LABELS, numbers, strict=False))


def _add_columns(total: int, n: int) -> str:
    """Add a two-digit number column by column: units, tens with carry, the new total."""
    units = total % 10 + n % 10
    tens = total // 10 % 10 + n // 10 + units // 10
    return (
        f"{total % 10}+{n % 10}={units:02d} "
        f"{total // 10 % 10}+{n // 10}+{units // 10}={tens:02d} {total + n:04d}"
    )


def _subtract_columns(total: int, n: int) -> str:
    """Subtract a two-digit number column by column, each column showing what it borrows."""
    borrow = int(total % 10 < n % 10)
    again = int(total // 10 % 10 < n // 10 + borrow)
    units = 10 * borrow + total % 10
    tens = 10 * again + total // 10 % 10
    return (
        f"{units:02d}-{n % 10}={units - n % 10} "
        f"{tens:02d}-{n // 10}-{borrow}={tens - n // 10 - borrow} {total - n:04d}"
    )


def _double_columns(total: int) -> str:
    """Double a number of at most three digits column by column, carrying."""
    columns: list[str] = []
    carry = 0
    for digit in (total % 10, total // 10 % 10, total // 100):
        value = 2 * digit + carry
        start = f"{digit}+{digit}" if not columns else f"{digit}+{digit}+{carry}"
        columns.append(f"{start}={value:02d}")
        carry = value // 10
    return f"{' '.join(columns)} {2 * total:04d}"


def explain_add(numbers: list[int]) -> Example:
    """Add numbers of 0..99, one running total per operand."""
    lines, total = [_labelled(numbers)], 0
    for label, n in zip(LABELS, numbers, strict=False):
        lines.append(f"{label}{n:02d} {_add_columns(total, n)}")
        total += n
    prompt = f"Add {', '.join(map(str, numbers))}."
    return Example("add", len(numbers), prompt, "\n".join(lines), str(total))


def _buckets(items: list[tuple[str, int]], tens: bool) -> list[list[tuple[str, int]]]:
    """Put labelled numbers into ten buckets by their tens or units, keeping their order."""
    buckets: list[list[tuple[str, int]]] = [[] for _ in range(10)]
    for label, n in items:
        buckets[n // 10 if tens else n % 10].append((label, n))
    return buckets


def explain_sort(numbers: list[int]) -> Example:
    """Sort numbers of 0..99 by radix: into buckets by units, then those by tens."""
    items = list(zip(LABELS, numbers, strict=False))
    lines = [_labelled(numbers)]
    for tens in (False, True):
        buckets = _buckets(items, tens)
        written = ("".join(f"{label}{n:02d}" for label, n in bucket) for bucket in buckets)
        lines.append(" ".join(f"{digit}{each}" for digit, each in enumerate(written)))
        items = [item for bucket in buckets for item in bucket]
    prompt = f"Sort {', '.join(map(str, numbers))}."
    answer = ", ".join(str(n) for _, n in items)
    return Example("sort", len(numbers), prompt, "\n".join(lines), answer)


def explain_count(letter: str, word: str) -> Example:
    """Count a letter in a word of a-z: spell it with labels, the count so far behind each find.

    The first line pairs the letter with 0, so that finding it again calls for a digit.
    """
    steps, seen = [f"{letter}0\n"], 0
    for label, each in zip(LETTER_LABELS, word, strict=False):
        seen += each == letter
        steps.append(f"{label}{each}{seen}" if each == letter else f"{label}{each}")
    prompt = f"Count the letter {letter} in {word}."
    return Example("count", len(word), prompt, "".join(steps), str(seen))


def explain_chain(start: int, steps: list[tuple[str, int]]) -> Example:
    """Follow steps ``("+", n)``, ``("-", n)`` and ``("*", 2)`` from a start of 0..99."""
    spoken = {"+": "add {}", "-": "subtract {}", "*": "double"}
    listed = " ".join(f"{la}{op}{n:02d}" for la, (op, n) in zip(LABELS, steps, strict=False))
    lines, value = [listed, f"{start:04d}"], start
    for label, (op, n) in zip(LABELS, steps, strict=False):
        if op == "+":
            work, after = _add_columns(value, n), value + n
        elif op == "-":
            work, after = _subtract_columns(value, n), value - n
        else:
            work, after = _double_columns(value), 2 * value
        lines.append(f"{label}{op}{n:02d} {work}")
        value = after
    prompt = ", ".join([f"Start with {start}", *(spoken[op].format(n) for op, n in steps)]) + "."
    return Example("chain", len(steps), prompt, "\n".join(lines), str(value))


def _make_chain(rng: random.Random, size: int) -> Example:
    """Draw a chain of ``size`` steps whose values stay within 0..CHAIN_MAX."""
    start = value = rng.randrange(100)
    steps: list[tuple[str, int]] = []
    while len(steps) < size:
        op, n = rng.choice("+++---*"), rng.randint(1, 99)
        after = {"+": value + n, "-": value - n, "*": 2 * value}[op]
        if 0 <= after <= CHAIN_MAX:
            steps.append((op, 2 if op == "*" else n))
            value = after
    return explain_chain(start, steps)


def _make_count(rng: random.Random, size: int) -> Example:
    """Draw a word of ``size`` letters and a letter that is usually in it."""
    word = random_word(rng, size)
    letter = rng.choice(word) if rng.random() < 0.7 else rng.choice("abcdefghijklmnopqrstuvwxyz")
    return explain_count(letter, word)


TASKS: dict[str, Task] = {
    "add": Task("add", 2, 20, lambda rng, size: explain_add(_numbers(rng, size))),
    "sort": Task("sort", 2, 20, lambda rng, size: explain_sort(_numbers(rng, size))),
    "count": Task("count", 3, 12, _make_count),
    "chain": Task("chain", 1, 12, _make_chain),
}


def draw(rng: random.Random, name: str, largest: int | None = None) -> Example:
    """Draw one training example of a task, its size leaning towards ``largest``."""
    task = TASKS[name]
    top = task.largest if largest is None else max(task.smallest, min(largest, task.largest))
    while True:
        size = max(rng.randint(task.smallest, top) for _ in range(2))
        example = task.make(rng, size)
        if not held_out(example.prompt):
            return example


def held_out_examples(name: str, count: int, seed: int) -> Iterator[Example]:
    """Yield ``count`` distinct held-out examples of a task, sizes taken in turn."""
    task, rng, seen = TASKS[name], random.Random(f"{seed}-{name}"), set[str]()
    while len(seen) < count:
        size = task.smallest + len(seen) % (task.largest - task.smallest + 1)
        example = task.make(rng, size)
        if held_out(example.prompt) and example.prompt not in seen:
            seen.add(example.prompt)
            yield example
