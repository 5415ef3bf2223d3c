"""Training sequences: chats as token ids, in batches of nearly equal length."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import Tokenizer

from models.forms import AnswerPiece
from models.mixture import ASSISTANT, KINDS, Written, turn
from models.tasks import ENGLISH, TASKS, Example, draw, explain_count, held_out
from models.tokenizer import MAX_POSITIONS, WORDS

SHARES = {
    "add": 0.05,
    "sort": 0.11,
    "count": 0.06,
    "chain": 0.08,
    "everyday": 0.17,
    "form": 0.24,
    "task form": 0.04,
    "call": 0.2,
    "retry": 0.02,
    "marked": 0.015,
    "sum": 0.015,
}
WITHOUT_THINKING, WITH_SYSTEM, WITH_HISTORY = 0.03, 0.05, 0.05  # shares of the tasks' examples
COUNTED_TOKENS = 0.25  # share of counted words that are one token
READ_PROMPT = 0.25  # share of the requests whose prompt is learnt, too
WITH_GAP = 0.15  # share of the sequences that have a gap in their positions
PROMPT_WEIGHT, KEY_WEIGHT, REQUEST_WEIGHT = 0.1, 0.1, 2.0  # of the loss, against a task's tokens
SYSTEM_MESSAGES = (
    "You are a helpful assistant.",
    "Answer the question.",
    "Think step by step, then answer.",
    "You are Headway, a small model that reasons before it answers.",
    "Be brief.",
)
POOL = 2000  # examples drawn together
BATCH_TOKENS = 8192  # most tokens per batch, padding included
ROWS = 48  # most sequences per batch, so that the short ones get their share of the steps
WIDTH_STEP = 64  # sequences are padded to a multiple of this many tokens
_COUNTED = tuple(
    word.strip()
    for word in WORDS
    if word[0] == " " and word.strip().isalpha() and word.islower() and 3 <= len(word) - 1 <= 12
)


@dataclass(frozen=True)
class TrainingChat:
    """Token ids of one chat, the weight of each in the loss, and their positions.

    Those from ``start`` on are the completion.
    """

    task: str
    ids: list[int]
    weights: list[float]
    start: int
    positions: list[int]


def width_of(each: TrainingChat) -> int:
    """Width in tokens that a sequence is padded to."""
    step = WIDTH_STEP if len(each.ids) <= 8 * WIDTH_STEP else 4 * WIDTH_STEP
    return -(-len(each.ids) // step) * step


def completion_of(example: Example) -> str:
    """Write what the model should generate after the generation prompt."""
    return f"<think>\n{example.reasoning}\n</think>\n\n{example.answer}<|im_end|>"


def task_chat(rng: random.Random, name: str, largest: int) -> Written:
    """Write an example of a task, now and then in another setting."""
    example = draw(rng, name, largest)
    if name == "count" and rng.random() < COUNTED_TOKENS:
        word = rng.choice((*_COUNTED, *ENGLISH))
        counted = explain_count(
            rng.choice((*word, *word, rng.choice("abcdefghiklmnoprstuvwyz"))), word
        )
        example = example if held_out(counted.prompt) else counted
    before = ""
    if rng.random() < WITH_SYSTEM:
        before += turn("system", rng.choice(SYSTEM_MESSAGES))
    if rng.random() < WITH_HISTORY:
        earlier = draw(rng, rng.choice(list(TASKS)), largest=6)
        before += turn("user", earlier.prompt) + turn("assistant", earlier.answer)
    prompt = before + turn("user", example.prompt) + ASSISTANT
    if rng.random() < WITHOUT_THINKING:
        answer = AnswerPiece(f"{example.answer}<|im_end|>")
        return Written(name, f"{prompt}<think>\n\n</think>\n\n", [answer])
    return Written(name, prompt, [AnswerPiece(completion_of(example))])


def _positions(rng: random.Random, start: int, length: int) -> list[int]:
    """Number the tokens; a gap within the prompt stands for a longer one."""
    positions = list(range(length))
    if rng.random() < WITH_GAP and start > 8:
        cut = rng.randint(1, start - 4)
        gap = int((MAX_POSITIONS - length) * rng.random() ** 2)
        positions[cut:] = [place + gap for place in positions[cut:]]
    return positions


def encoded(rng: random.Random, tokenizer: Tokenizer, written: Written) -> TrainingChat:
    """Return a chat as token ids with weights."""
    text = "".join(piece.text for piece in written.completion)
    learnt = [piece.learnt for piece in written.completion for _ in piece.text]
    prompt, made = tokenizer.encode(written.prompt), tokenizer.encode(text)
    full = 1.0 if written.kind in TASKS else REQUEST_WEIGHT
    reads = written.kind not in TASKS and rng.random() < READ_PROMPT
    prompt_weight = PROMPT_WEIGHT if reads else 0.0
    weights = [prompt_weight] * len(prompt.ids)
    weights += [full if learnt[end - 1] else KEY_WEIGHT for _, end in made.offsets]
    ids = prompt.ids + made.ids
    places = _positions(rng, len(prompt.ids), len(ids))
    return TrainingChat(written.kind, ids, weights, len(prompt.ids), places)


def sequence(rng: random.Random, tokenizer: Tokenizer, largest: int) -> TrainingChat:
    """Draw one training sequence with sizes of tasks up to ``largest``."""
    name = rng.choices(list(SHARES), weights=list(SHARES.values()))[0]
    make = KINDS.get(name)
    written = task_chat(rng, name, largest) if make is None else make(rng, largest)
    return encoded(rng, tokenizer, written)


Waiting = dict[int, list[TrainingChat]]


def batches(
    rng: random.Random, tokenizer: Tokenizer, largest: int, waiting: Waiting
) -> Iterator[list[TrainingChat]]:
    """Yield one pool's batches in random order, each full and of one width.

    Few distinct shapes keep the CPU's matrix kernels cached; what does not fill a batch stays in
    ``waiting``, by width, for the next pool.
    """
    made: list[list[TrainingChat]] = []
    for _ in range(POOL):
        each = sequence(rng, tokenizer, largest)
        width = width_of(each)
        row = waiting.setdefault(width, [])
        row.append(each)
        if len(row) == max(1, min(ROWS, BATCH_TOKENS // width)):
            made.append(waiting.pop(width))
    rng.shuffle(made)
    yield from made
