"""Loads of known lengths: those that a profile learns from, and those that it has to predict."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from headway.sim.cluster import SimRequest
from headway.workload.arrivals import Bursts, gaps
from headway.workload.traces import TraceRow

SIGMA = 0.7
_LEAST_PROMPT, _LEAST_OUTPUT = 8, 2
_PAUSE = 3.0  # seconds between the parts of a load
SIX_FOLD = Bursts(factor=6.0, length=2.0, share=0.2)


@dataclass(frozen=True, slots=True)
class Mix:
    """Log-normal lengths: their medians and the most that is drawn, tokens."""

    prompt: int = 150
    output: int = 60
    most_prompt: int = 900
    most_output: int = 400

    def lengths(self, rng: random.Random) -> tuple[int, int]:
        """Draw a prompt's and an output's length."""
        prompt = int(min(rng.lognormvariate(0, SIGMA) * self.prompt, self.most_prompt))
        output = int(min(rng.lognormvariate(0, SIGMA) * self.output, self.most_output))
        return max(_LEAST_PROMPT, prompt), max(_LEAST_OUTPUT, output)


CHATS = Mix()
LONG_PROMPTS = Mix(prompt=500, most_prompt=1500)
LONG_OUTPUTS = Mix(output=200, most_output=500)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a load: so many requests of a mix at a mean rate, requests/s."""

    count: int
    rate: float
    mix: Mix = CHATS
    bursts: Bursts | None = None


SPREAD = (Part(70, 4.0), Part(30, 3.0, LONG_PROMPTS), Part(50, 40.0))
"""A learning load of 150 requests: few at a time, long prompts, and a crowd."""
TOGETHER = (Part(40, 8.0), Part(50, 20.0), Part(60, 40.0))
"""A load that keeps several workers busy at once, more and more."""


def drawn(parts: Iterable[Part], seed: int) -> list[TraceRow]:
    """Return the parts one behind another, Poisson or in bursts, with a pause between them."""
    rng, rows = random.Random(seed), list[TraceRow]()
    for part in parts:
        now = rows[-1].arrival_at + _PAUSE if rows else 0.0
        for gap in islice(_gaps(part, rng), part.count):
            now += gap
            rows.append(TraceRow(now, *part.mix.lengths(rng)))
    return rows


def _gaps(part: Part, rng: random.Random) -> Iterator[float]:
    if part.bursts is not None:
        return part.bursts.gaps(part.rate, rng)
    return gaps("poisson", part.rate, rng)


def poisson(rate: float, count: int, seed: int, mix: Mix = CHATS) -> list[TraceRow]:
    """Return Poisson arrivals at ``rate``/s."""
    return drawn([Part(count, rate, mix)], seed)


def one_by_one(pause: float, count: int, seed: int) -> list[TraceRow]:
    """Return arrivals so far apart that no request meets another."""
    rng = random.Random(seed)
    return [TraceRow(pause * (n + 1), CHATS.lengths(rng)[0], 2) for n in range(count)]


def at_once(rows: Sequence[TraceRow]) -> list[TraceRow]:
    """Return the same requests, all at 0 s."""
    return [replace(row, arrival_at=0.0) for row in rows]


def simulated(rows: Sequence[TraceRow]) -> Iterator[SimRequest]:
    """Yield the same requests; the place of each is its id."""
    for number, row in enumerate(rows):
        num_prompt, num_output = row.prompt_tokens or 1, row.output_tokens or 1
        yield SimRequest(str(number), row.arrival_at, num_prompt, num_output)
