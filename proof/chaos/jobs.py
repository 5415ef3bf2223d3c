"""The requests that clients repeat under faults, so that every answer has one to compare with.

Each is deterministic: greedy, or with a seed. Together they cover both APIs, streams and whole
answers, short and long ones, penalties, and several choices at once.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

_QUESTIONS = (
    "Add 17, 25, 8.",
    "Sort 5, 3, 9.",
    "Count the letter r in strawberry.",
    "Add 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22.",
    "Sort 40, 30, 20, 10, 11, 12, 13.",
    "Start with 5, add 3, double it, subtract 4.",
)
_KINDS = ("chat", "chat-seeded", "completion", "completion-seeded", "choices", "whole")
CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
_DRAWS = ("seed", "top_p", "repetition_penalty", "presence_penalty")
"""Fields that make a request anything but greedy."""


@dataclass(frozen=True, slots=True)
class ChaosJob:
    """A request that is asked again and again."""

    kind: str
    path: str
    fields: Mapping[str, Any]

    @property
    def num_choices(self) -> int:
        """Answers that one request gets."""
        return int(self.fields.get("n", 1))

    @property
    def streams(self) -> bool:
        """Return whether tokens come as they are drawn."""
        return bool(self.fields["stream"])

    def body(self) -> bytes:
        """Return the request's body."""
        return json.dumps(dict(self.fields)).encode()


def make_jobs(model: str, number: int, seed: int, *, greedy: bool = False) -> Sequence[ChaosJob]:
    """Return so many jobs, of all kinds in turn; ``greedy``: none draws or has penalties."""
    rng = random.Random(seed)
    jobs = [_job(model, _KINDS[place % len(_KINDS)], rng) for place in range(number)]
    return [_greedy(job) for job in jobs] if greedy else jobs


def _job(model: str, kind: str, rng: random.Random) -> ChaosJob:
    question = rng.choice(_QUESTIONS)
    fields: dict[str, Any] = {
        "model": model,
        "stream": kind != "whole",
        "return_token_ids": True,
        "temperature": 0,
    }
    if kind in ("chat", "chat-seeded", "whole"):
        fields["messages"] = [{"role": "user", "content": question}]
    else:
        fields["prompt"] = question * rng.randint(1, 24)
        fields |= {"ignore_eos": True, "max_tokens": rng.randint(60, 400)}
    if kind == "chat-seeded":
        fields |= {"ignore_eos": True, "max_tokens": rng.randint(100, 500), "top_p": 0.95}
    if kind == "completion-seeded":
        fields |= {"repetition_penalty": 1.1, "presence_penalty": 0.3}
    if kind == "choices":
        fields["n"] = rng.randint(2, 4)
    if kind in ("chat-seeded", "completion-seeded", "choices"):
        fields |= {"temperature": rng.choice((0.7, 1.2)), "seed": rng.randrange(2**31)}
    path = CHAT if "messages" in fields else PLAIN
    return ChaosJob(kind, path, MappingProxyType(fields))


def _greedy(job: ChaosJob) -> ChaosJob:
    fields = {name: value for name, value in job.fields.items() if name not in _DRAWS}
    return replace(job, fields=MappingProxyType(fields | {"temperature": 0}))
