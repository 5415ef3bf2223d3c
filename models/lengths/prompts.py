"""Prompts to collect from: the small model's tasks, or a file of one's own."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headway.errors import Code, HeadwayError, invalid
from headway.request import SamplingParams
from models.lengths.collect import Prompt
from models.tasks import TASKS


def task_chats(num_prompts: int, seed: int) -> list[list[dict[str, str]]]:
    """Return chats of the small model's tasks, all sizes alike, ordered by their reasoning."""
    rng = random.Random(seed)
    tasks = list(TASKS.values())
    examples = []
    for number in range(num_prompts):
        task = tasks[number % len(tasks)]
        examples.append(task.make(rng, rng.randint(task.smallest, task.largest)))
    examples.sort(key=lambda example: len(example.reasoning))
    return [[{"role": "user", "content": example.prompt}] for example in examples]


def file_chats(path: Path) -> list[list[dict[str, str]]]:
    """Return the chats of a file, a JSON object a line: ``messages``, or ``prompt``."""
    try:
        lines = [line for line in path.read_text().splitlines() if line.strip()]
    except OSError as error:
        raise HeadwayError(Code.NOT_FOUND, f"cannot read {path}: {error.strerror}") from error
    return [_chat(line, number) for number, line in enumerate(lines, start=1)]


def _chat(line: str, number: int) -> list[dict[str, str]]:
    try:
        parsed = json.loads(line)
    except json.JSONDecodeError as error:
        raise invalid(f"line {number}", line, f"a JSON object ({error})") from error
    if isinstance(parsed, dict) and isinstance(parsed.get("messages"), list):
        return list(parsed["messages"])
    if isinstance(parsed, dict) and isinstance(parsed.get("prompt"), str):
        return [{"role": "user", "content": parsed["prompt"]}]
    raise invalid(f"line {number}", line, "an object with messages or prompt")


def prompts(
    tokenizer: Any,
    chats: Sequence[list[dict[str, str]]],
    temperatures: Sequence[float],
    max_tokens: int,
    seed: int,
) -> Iterator[Prompt]:
    """Yield the chats through the model's template, with temperatures in turn."""
    for number, chat in enumerate(chats):
        temperature = temperatures[number % len(temperatures)]
        token_ids = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        sampling = SamplingParams(
            temperature=temperature, seed=seed + number, max_tokens=max_tokens
        )
        yield Prompt(tuple(token_ids), sampling)
