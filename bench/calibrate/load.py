"""Requests of known lengths: what the cluster is asked, and what the simulator is told of it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.sim.cluster import SimRequest

MEDIAN_PROMPT, MEDIAN_OUTPUT = 150, 60
SIGMA = 0.7
MOST_PROMPT, MOST_OUTPUT = 900, 400


@dataclass(frozen=True, slots=True)
class Row:
    """A request: arrival in seconds after the start, tokens."""

    arrival_at: float
    prompt_tokens: int
    output_tokens: int


def poisson(rate: float, count: int, seed: int) -> list[Row]:
    """Poisson arrivals at ``rate``/s with log-normal lengths."""
    rng = random.Random(seed)
    rows, now = [], 0.0
    for _ in range(count):
        now += rng.expovariate(rate)
        rows.append(Row(now, *_lengths(rng)))
    return rows


def one_by_one(pause: float, count: int, seed: int) -> list[Row]:
    """Arrivals so far apart that nobody meets."""
    rng = random.Random(seed)
    return [Row(pause * (n + 1), _lengths(rng)[0], 2) for n in range(count)]


def _lengths(rng: random.Random) -> tuple[int, int]:
    prompt = int(min(rng.lognormvariate(0, SIGMA) * MEDIAN_PROMPT, MOST_PROMPT))
    output = int(min(rng.lognormvariate(0, SIGMA) * MEDIAN_OUTPUT, MOST_OUTPUT))
    return max(8, prompt), max(2, output)


def write_trace(path: Path, rows: Sequence[Row]) -> None:
    """Return the request as ``headway bench serve`` reads it."""
    lines = [
        json.dumps(
            {
                "arrival_at": row.arrival_at,
                "prompt_tokens": row.prompt_tokens,
                "output_tokens": row.output_tokens,
            }
        )
        for row in rows
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def simulated(rows: Sequence[Row]) -> Iterator[SimRequest]:
    """Yield the same requests."""
    for number, row in enumerate(rows):
        yield SimRequest(f"r{number}", row.arrival_at, row.prompt_tokens, row.output_tokens)
