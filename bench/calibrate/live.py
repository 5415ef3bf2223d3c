"""Requests of known lengths: replayed against a live cluster, and told to the simulator."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from bench.calibrate.figures import Seen
from bench.cluster.offered import replayed
from bench.serve.plan import Options, make_plan
from headway.errors import Code, HeadwayError
from headway.sim.cluster import SimRequest
from headway.workload.traces import TraceRow

MEDIAN_PROMPT, MEDIAN_OUTPUT = 150, 60
SIGMA = 0.7
MOST_PROMPT, MOST_OUTPUT = 900, 400


def poisson(rate: float, count: int, seed: int) -> list[TraceRow]:
    """Return Poisson arrivals at ``rate``/s with log-normal lengths."""
    rng = random.Random(seed)
    rows, now = [], 0.0
    for _ in range(count):
        now += rng.expovariate(rate)
        rows.append(TraceRow(now, *_lengths(rng)))
    return rows


def one_by_one(pause: float, count: int, seed: int) -> list[TraceRow]:
    """Return arrivals so far apart that no request meets another."""
    rng = random.Random(seed)
    return [TraceRow(pause * (n + 1), _lengths(rng)[0], 2) for n in range(count)]


def _lengths(rng: random.Random) -> tuple[int, int]:
    prompt = int(min(rng.lognormvariate(0, SIGMA) * MEDIAN_PROMPT, MOST_PROMPT))
    output = int(min(rng.lognormvariate(0, SIGMA) * MEDIAN_OUTPUT, MOST_OUTPUT))
    return max(8, prompt), max(2, output)


def write_trace(path: Path, rows: Sequence[TraceRow]) -> None:
    """Write the requests as ``headway bench serve`` reads them."""
    names = ("arrival_at", "prompt_tokens", "output_tokens")
    lines = [json.dumps({name: asdict(row)[name] for name in names}) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def simulated(rows: Sequence[TraceRow]) -> Iterator[SimRequest]:
    """Yield the same requests."""
    for number, row in enumerate(rows):
        num_prompt, num_output = row.prompt_tokens or 1, row.output_tokens or 1
        yield SimRequest(f"r{number}", row.arrival_at, num_prompt, num_output)


async def ask(url: str, model: str, rows: Sequence[TraceRow], seed: int) -> list[Seen]:
    """Replay the requests; HeadwayError where one fails: nothing would be comparable."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "requests.jsonl"
        write_trace(trace, rows)
        options = Options(
            model=model, trace=trace, prompts="random-tokens", endpoint="completions", seed=seed
        )
        plan = make_plan(options)
    requests = await replayed(url, plan)
    failed = [each.error for each in requests if each.times is None]
    if failed:
        message = f"{len(failed)} of {len(rows)} requests failed: {failed[0]}"
        raise HeadwayError(Code.UNAVAILABLE, message)
    return [
        Seen(times.ttft, times.tpot, times.ttlt)
        for each in requests
        if (times := each.times) is not None
    ]
