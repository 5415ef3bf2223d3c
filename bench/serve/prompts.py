"""The prompts: the small model's tasks, a file's prompts, a trace's own, or random tokens."""

from __future__ import annotations

import bisect
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from headway.errors import Code, HeadwayError
from headway.workload.traces import TraceRow

MINI_POOL = 50  # distinct problems of each task
MARKUP_TOKENS = 7  # the small model's tokens beside reasoning and answer
TEXT_TOKENS = range(32, 127)  # ids that no vocabulary gives to a special token
RANDOM_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt: chat messages, a text or token ids, and what is known of the answer.

    ``reasons``: False where all of the output is an answer.
    """

    prompt: list[dict[str, str]] | str | list[int]
    task: str = ""
    answer: str | None = None
    max_tokens: int | None = None
    ignore_eos: bool = False
    reasons: bool = True


Source = Callable[[TraceRow | None, random.Random], Ask]
"""A prompt for a trace's row (None: no trace)."""


def mini_source() -> Source:
    """Return the small model's held-out problems; with a trace, those nearest in output length."""
    pool = _mini_pool()
    lengths = [num_tokens for num_tokens, _ in pool]

    def ask(row: TraceRow | None, rng: random.Random) -> Ask:
        if row is None or row.output_tokens is None:
            return rng.choice(pool)[1]
        place = bisect.bisect_left(lengths, row.output_tokens)
        return rng.choice(pool[max(0, place - 3) : place + 3])[1]

    return ask


@cache
def _mini_pool() -> tuple[tuple[int, Ask], ...]:
    """Problems by the tokens that a right output has: its tokenizer has one a byte."""
    from models.tasks import TASKS, held_out_examples

    pool = [
        (len(each.reasoning) + len(each.answer) + MARKUP_TOKENS, each)
        for name in TASKS
        for each in held_out_examples(name, MINI_POOL, seed=0)
    ]
    pool.sort(key=lambda pair: (pair[0], pair[1].prompt))
    return tuple(
        (num_tokens, Ask(_user(each.prompt), each.task, each.answer)) for num_tokens, each in pool
    )


def file_source(path: Path, chat: bool) -> Source:
    """Return a prompt a line: plain text, or (.jsonl) objects with ``prompt`` or ``messages``."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise HeadwayError(Code.INVALID_ARGUMENT, f"cannot read {path}: {error}") from None
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise HeadwayError(Code.INVALID_ARGUMENT, f"{path} has no line; give a prompt a line")
    if path.suffix == ".jsonl":
        asks = [_json_ask(line, f"{path}, line {number}", chat) for number, line in numbered]
    else:
        asks = [Ask(_user(line) if chat else line) for _, line in numbered]

    def ask(row: TraceRow | None, rng: random.Random) -> Ask:
        chosen = rng.choice(asks)
        return Ask(chosen.prompt, max_tokens=row.output_tokens if row else None)

    return ask


def _json_ask(line: str, where: str, chat: bool) -> Ask:
    try:
        record: Any = json.loads(line)
    except ValueError:
        record = None
    record = record if isinstance(record, dict) else {}
    messages, prompt = record.get("messages"), record.get("prompt")
    if chat and isinstance(messages, list) and messages:
        return Ask(messages)
    if isinstance(prompt, str) and prompt:
        return Ask(_user(prompt) if chat else prompt)
    beginning = line.strip()[:80]
    message = f"{where}: {beginning!r} has no prompt; give an object with prompt or messages"
    raise HeadwayError(Code.INVALID_ARGUMENT, message)


def trace_source(chat: bool) -> Source:
    """Return the trace's own prompts."""

    def ask(row: TraceRow | None, rng: random.Random) -> Ask:
        if row is None or row.prompt is None:
            message = "--prompts trace needs a --trace whose every row has a prompt"
            raise HeadwayError(Code.INVALID_ARGUMENT, message)
        prompt = _user(row.prompt) if chat else row.prompt
        return Ask(prompt, max_tokens=row.output_tokens)

    return ask


def random_source(prompt_tokens: int, limit: int | None, *, ignore_eos: bool) -> Source:
    """Random token ids, as many as the trace says; ``limit`` is the model's for both ends."""

    def ask(row: TraceRow | None, rng: random.Random) -> Ask:
        length = (row and row.prompt_tokens) or prompt_tokens
        output = (row and row.output_tokens) or RANDOM_TOKENS
        if limit is not None:
            output = min(output, limit - 1)
            length = min(length, limit - output)
        ids = rng.choices(TEXT_TOKENS, k=length)
        return Ask(ids, max_tokens=output, ignore_eos=ignore_eos, reasons=False)

    return ask


def _user(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]
