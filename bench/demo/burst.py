"""The demo's requests: chats that answer at once and requests that reason, with a burst between.

The small model reasons in chats. Its completions stand for chats without reasoning: all that they
generate is read, and as long as is asked for.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace

from bench.serve.plan import Options, Plan, Planned, make_plan
from headway.workload.arrivals import arrivals

REASONING_SHARE = 0.4
BURST_LENGTH = 1.0  # seconds
_CHAT_TOKENS = range(40, 161)  # of an answer
_PROMPT_TOKENS = range(20, 200)


@dataclass(frozen=True, slots=True)
class DemoLoad:
    """Both kinds on one clock."""

    reasoning: Plan
    chats: Plan

    @property
    def num_requests(self) -> int:
        """Number of requests of both kinds."""
        return len(self.reasoning.requests) + len(self.chats.requests)


def make_burst(model: str, num_requests: int, rate: float, seed: int) -> DemoLoad:
    """Plan a third of the requests at ``rate``, a third within a second, a third at ``rate``."""
    rng = random.Random(seed)
    instants = _instants(num_requests, rate, rng)
    reasons = [rng.random() < REASONING_SHARE for _ in instants]
    reasoning = [at for at, each in zip(instants, reasons, strict=True) if each] or instants[:1]
    chats = [at for at, each in zip(instants, reasons, strict=True) if not each] or instants[1:2]
    return DemoLoad(_reasoning(model, reasoning, seed), _chats(model, chats, rng))


def _instants(num_requests: int, rate: float, rng: random.Random) -> list[float]:
    third = num_requests // 3
    before = arrivals("poisson", rate, rng, num_requests=third)
    begin = before[-1] if before else 0.0
    burst = sorted(begin + rng.uniform(0.0, BURST_LENGTH) for _ in range(num_requests - 2 * third))
    behind = arrivals("poisson", rate, rng, num_requests=third)
    return [*before, *burst, *(begin + BURST_LENGTH + at for at in behind)]


def _reasoning(model: str, instants: list[float], seed: int) -> Plan:
    """Return the small model's problems, whose answers are known."""
    options = Options(model, rate=1.0, num_requests=len(instants), prompts="mini", seed=seed)
    plan = make_plan(options)
    timed = [replace(one, arrival_at=at) for one, at in zip(plan.requests, instants, strict=True)]
    return replace(plan, requests=timed)


def _chats(model: str, instants: list[float], rng: random.Random) -> Plan:
    planned = []
    for index, at in enumerate(instants):
        body = {
            "model": model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "prompt": [rng.randrange(32, 127) for _ in range(rng.choice(_PROMPT_TOKENS))],
            "max_tokens": rng.choice(_CHAT_TOKENS),
            "ignore_eos": True,
            "temperature": 0.7,
            "seed": index,
        }
        planned.append(Planned(index, at, json.dumps(body).encode(), "chat", None))
    return Plan("/v1/completions", planned, ())
