"""Training sequences: examples as chats of token ids, in batches of nearly equal length."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import Tokenizer

from models.tasks import TASKS, Example, draw

TASK_SHARES = {"add": 0.22, "sort": 0.28, "count": 0.26, "chain": 0.24}
WITHOUT_THINKING, WITH_SYSTEM, WITH_HISTORY = 0.03, 0.05, 0.05  # shares of the examples
SYSTEM_MESSAGES = (
    "You are a helpful assistant.",
    "Answer the question.",
    "Think step by step, then answer.",
    "You are Headway, a small model that reasons before it answers.",
    "Be brief.",
)
POOL = 2000  # examples drawn together
BATCH_TOKENS = 8192  # most tokens per batch, padding included
ROWS = 32  # most sequences per batch, so that the short tasks get their share of the steps
WIDTH_STEP = 64  # sequences are padded to a multiple of this many tokens


@dataclass(frozen=True)
class TrainingChat:
    """Token ids of one chat; those from ``start`` on are the completion to learn."""

    task: str
    ids: list[int]
    start: int


def width_of(each: TrainingChat) -> int:
    """Width in tokens that a sequence is padded to."""
    return -(-len(each.ids) // WIDTH_STEP) * WIDTH_STEP


def turn(role: str, content: str) -> str:
    """Write one finished message as the chat template does."""
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


def completion_of(example: Example) -> str:
    """Write what the model should generate after the generation prompt."""
    return f"<think>\n{example.reasoning}\n</think>\n\n{example.answer}<|im_end|>"


def chat_of(example: Example, rng: random.Random) -> tuple[str, str]:
    """Write an example as prompt and completion text, now and then in another setting."""
    before = ""
    if rng.random() < WITH_SYSTEM:
        before += turn("system", rng.choice(SYSTEM_MESSAGES))
    if rng.random() < WITH_HISTORY:
        earlier = draw(rng, rng.choice(list(TASKS)), largest=6)
        before += turn("user", earlier.prompt) + turn("assistant", earlier.answer)
    prompt = before + turn("user", example.prompt) + "<|im_start|>assistant\n"
    if rng.random() < WITHOUT_THINKING:
        return prompt + "<think>\n\n</think>\n\n", f"{example.answer}<|im_end|>"
    return prompt, completion_of(example)


def sequence(rng: random.Random, tokenizer: Tokenizer, largest: int) -> TrainingChat:
    """Draw one training sequence with sizes up to ``largest``."""
    name = rng.choices(list(TASK_SHARES), weights=list(TASK_SHARES.values()))[0]
    prompt, completion = chat_of(draw(rng, name, largest), rng)
    prompt_ids: list[int] = tokenizer.encode(prompt).ids
    return TrainingChat(name, prompt_ids + tokenizer.encode(completion).ids, len(prompt_ids))


def batches(rng: random.Random, tokenizer: Tokenizer, largest: int) -> Iterator[list[TrainingChat]]:
    """Yield one pool's batches in random order, each full and of one width.

    Few distinct shapes keep the CPU's matrix kernels cached; what does not fill a batch is left.
    """
    waiting: dict[int, list[TrainingChat]] = {}
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
