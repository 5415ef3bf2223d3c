"""Requests as they were recorded: a window of a trace, as fast as a study asks.

Files come from ``shared/data`` (``--data``). The seed chooses the window: so many requests in a
row, and its own mean rate becomes the one that is asked for. Mooncake's arrivals are spread over
the 3 s of its clock. ServeGen's requests are drawn from the fitted statistics of ten minutes of a
day, the same for every seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

from headway.workload.servegen import ServeGen, load_servegen
from headway.workload.traces import Trace, TraceRow, load_trace
from studies.bursts import data_folder


@dataclass(frozen=True, slots=True)
class TraceFiles:
    """A trace: one file of rows, or ServeGen's two (rates and lengths).

    ``per_prompt_token``: seconds that the first token may take longer for each prompt token over
    ``_SHORT``, about 1.7 times those of a pass without others.
    """

    files: tuple[str, ...]
    per_prompt_token: float = 2e-4

    @property
    def paths(self) -> list[Path]:
        """Its files."""
        return [data_folder() / name for name in self.files]

    @property
    def missing(self) -> list[Path]:
        """The files that are not there."""
        return [path for path in self.paths if not path.exists()]

    def allowed(self, num_prompt_tokens: int) -> float:
        """Return the seconds that a long prompt has on top of what every request has."""
        return self.per_prompt_token * max(0, num_prompt_tokens - _SHORT)

    def rows(self, rate: float, num_requests: int, rng: random.Random) -> Iterator[TraceRow]:
        """Yield the requests of a window by arrival; about ``num_requests`` at ``rate``/s."""
        if len(self.files) > 1:
            trace = _drawn(_servegen(*self.paths), num_requests, rng)
        else:
            trace = _window(_trace(self.paths[0]), num_requests, rng)
        return trace.replay(rate, rng)


_trace, _servegen = cache(load_trace), cache(load_servegen)  # every run of a study reads them
_SHORT = 4096  # prompt tokens
_MORNING = 36_000.0  # seconds into ServeGen's day
AZURE_CHAT = TraceFiles(("azure_llm_2023_conv.csv.gz",))
AZURE_CODE = TraceFiles(("azure_llm_2023_code.csv.gz",))
MOONCAKE = TraceFiles(("mooncake_conversation_trace.jsonl.gz",), per_prompt_token=1e-4)
SERVEGEN = TraceFiles(
    ("servegen_deepseek_r1_rates.csv.gz", "servegen_deepseek_r1_lengths.jsonl.gz")
)


def _window(trace: Trace, num_requests: int, rng: random.Random) -> Trace:
    """Return so many requests in a row, a few less or more where the clock is coarse.

    A longer window of the same seed begins near the same place.
    """
    instants = [row.arrival_at for row in trace.rows]
    first = int(rng.random() * max(0, len(instants) - num_requests))
    last = min(first + num_requests, len(instants) - 1)
    return trace.between(instants[first], instants[last])


def _drawn(trace: ServeGen, num_requests: int, rng: random.Random) -> Trace:
    """Return the first requests of ten minutes."""
    rows = trace.between(_MORNING, _MORNING + trace.length).replay(0.0, rng)
    return Trace("servegen", tuple(islice(rows, num_requests)))
