"""What one client reads of one request: tokens by choice, and how it ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.serve.client import Client, RequestFailedError
from bench.serve.sse import DONE, BadStreamError
from headway.errors import Code
from proof.chaos.jobs import ChaosJob

OnTokens = Callable[[int, Sequence[int]], None]
"""Takes the choice and its newest tokens."""


@dataclass(slots=True)
class AnswerChoice:
    """One answer: its tokens, its text and its finish reason."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str = ""

    def tokens(self) -> list[int | str]:
        """Return its tokens; the last one is made of the finish reason and the whole text."""
        return [*self.token_ids, self.last()]

    def last(self) -> str:
        """Return what can only be compared at the end."""
        return f"{self.finish_reason}: {self.text}"


class Refusal(Exception):  # noqa: N818 (an answer that says no)
    """A request that ended with an error; ``code`` is a name of ``headway.errors.Code``.

    "CONNECTION" is the code where the connection broke.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


async def read_answer(client: Client, job: ChaosJob, on_tokens: OnTokens) -> list[AnswerChoice]:
    """Ask once and return every choice; Refusal where the gateway said no, or nothing."""
    choices = [AnswerChoice() for _ in range(job.num_choices)]
    ends: list[Refusal] = []

    def take(data: bytes, _now: float) -> None:
        if data != DONE:
            event = json.loads(data)
            if event.get("error"):
                ends.append(_refusal(event))
                raise BadStreamError("error event")
            _take(event, choices, on_tokens)

    try:
        response = await client.post(job.path, job.body(), take)
    except RequestFailedError as error:
        if ends:
            raise ends[0] from None
        code = Code.DEADLINE_EXCEEDED.name if error.kind == "timeout" else "CONNECTION"
        raise Refusal(code, str(error)) from None
    if response.status != 200:
        raise _refusal(_object(bytes(response.body)), response.status)
    if not job.streams:
        _take(_object(bytes(response.body)), choices, on_tokens)
    if any(not choice.finish_reason for choice in choices):
        raise Refusal("INCOMPLETE", "the response ended and a choice had no finish reason")
    return choices


def _take(event: dict[str, Any], choices: list[AnswerChoice], on_tokens: OnTokens) -> None:
    for said in event.get("choices", ()):
        choice = choices[said["index"]]
        part = said.get("delta") or said.get("message") or said
        choice.text += part.get("reasoning_content") or ""
        choice.text += part.get("content") or part.get("text") or ""
        new = said.get("token_ids") or []
        if new:
            choice.token_ids += new
            on_tokens(said["index"], new)
        choice.finish_reason = said.get("finish_reason") or choice.finish_reason


def _object(body: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except ValueError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {}


def _refusal(event: dict[str, Any], status: int = 0) -> Refusal:
    said = event.get("error") or {}
    names = {429: Code.RESOURCE_EXHAUSTED, 503: Code.UNAVAILABLE, 504: Code.DEADLINE_EXCEEDED}
    code = names[status].name if status in names else str(said.get("code") or status).upper()
    return Refusal(code, str(said.get("message", event)))
