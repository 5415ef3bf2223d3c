"""Training chats besides the tasks: forms, calls and everyday requests, as text to learn."""

from __future__ import annotations

import random
from typing import NamedTuple

from models.calls import declared, draw_tools, tool_request
from models.everyday import everyday
from models.forms import (
    AnswerPiece,
    Messages,
    form_request,
    marked_request,
    sum_in_words,
    task_form,
)
from services.gateway.tool_calls.prompt import with_tools


class Written(NamedTuple):
    """A chat as text: the prompt, and the pieces of its completion."""

    kind: str
    prompt: str
    completion: list[AnswerPiece]


ASSISTANT = "<|im_start|>assistant\n"
NO_THOUGHT = "<think>\n\n</think>"


def turn(role: str, content: str) -> str:
    """Write one finished message as the chat template does."""
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


def _chat(messages: Messages, tools: list[dict[str, object]]) -> str:
    return "".join(turn(each["role"], each["content"]) for each in with_tools(messages, tools))


def _finish(
    kind: str,
    rng: random.Random,
    prompt: str,
    pieces: list[AnswerPiece],
    at_once: bool,
    thought: str = "",
) -> Written:
    """Put the thought and the end around an answer; a grammar begins just behind the thought."""
    end = AnswerPiece("<|im_end|>")
    if not thought and rng.random() < 0.35:
        return Written(kind, f"{prompt}{ASSISTANT}{NO_THOUGHT}\n\n", [*pieces, end])
    between = "" if at_once else "\n\n"
    written = f"<think>\n{thought}\n</think>" if thought else NO_THOUGHT
    return Written(kind, prompt + ASSISTANT, [AnswerPiece(written + between), *pieces, end])


def _some_tools(rng: random.Random) -> list[dict[str, object]]:
    return [declared(each, rng) for each in draw_tools(rng)] if rng.random() < 0.5 else []


def form_chat(rng: random.Random, largest: int) -> Written:
    """Write a request for a form."""
    messages, pieces, at_once = form_request(rng, long=False)
    tools = _some_tools(rng) if rng.random() < 0.1 else []
    return _finish("form", rng, _chat(messages, tools), pieces, at_once)


def retry_chat(rng: random.Random, largest: int) -> Written:
    """Write a request for a form with its retries."""
    messages, pieces, at_once = form_request(rng, long=True)
    return _finish("retry", rng, _chat(messages, []), pieces, at_once)


def task_form_chat(rng: random.Random, largest: int) -> Written:
    """Write a task whose answer has a form."""
    messages, pieces, at_once, thought = task_form(rng, largest)
    return _finish("task form", rng, _chat(messages, []), pieces, at_once, thought)


def call_chat(rng: random.Random, largest: int) -> Written:
    """Write a request with tools."""
    messages, tools, pieces, at_once = tool_request(rng)
    return _finish("call", rng, _chat(messages, tools), pieces, at_once)


def everyday_chat(rng: random.Random, largest: int) -> Written:
    """Write a chat, now and then with tools that do not fit."""
    messages, answer = everyday(rng)
    tools = _some_tools(rng) if rng.random() < 0.18 else []
    return _finish("everyday", rng, _chat(messages, tools), [AnswerPiece(answer)], False)


def sum_chat(rng: random.Random, largest: int) -> Written:
    """Write a small sum in everyday words."""
    example = sum_in_words(rng)
    prompt = _chat([{"role": "user", "content": example.prompt}], [])
    return _finish("sum", rng, prompt, [AnswerPiece(example.answer)], False, example.reasoning)


def marked_chat(rng: random.Random, largest: int) -> Written:
    """Write a request whose fields stand between marks."""
    messages, pieces, thought = marked_request(rng)
    return _finish("marked", rng, _chat(messages, []), pieces, False, thought)


KINDS = {
    "marked": marked_chat,
    "everyday": everyday_chat,
    "form": form_chat,
    "task form": task_form_chat,
    "call": call_chat,
    "retry": retry_chat,
    "sum": sum_chat,
}
