"""Measurements of the simulator: what each request's client sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.class_metrics import Reading, ServedRequest
from headway.metrics import qoe
from headway.policies.pacing import Pacing
from headway.sim.reader_pacing import display_times


class Segment(NamedTuple):
    """Tokens that came in a row: token k, from 0, at ``first_at + k·step + k(k-1)/2·growth``."""

    num_tokens: int
    first_at: float
    step: float
    growth: float

    @property
    def last_at(self) -> float:
        """When the last of them came."""
        k = self.num_tokens - 1
        return self.first_at + k * self.step + self.growth * (k * (k - 1) / 2)


@dataclass(slots=True)
class Record:
    """A request's arrival, its tokens' instants and its end; seconds, tokens.

    ``pacing``: the policy that holds answering tokens for its reader, if any. ``reader_tpot``:
    seconds that its class promises its reader for a token, None for the policy's.
    """

    request_id: str
    arrival_at: float
    num_prompt_tokens: int
    num_reasoning_tokens: int
    num_output_tokens: int
    segments: list[Segment] = field(default_factory=list)
    first_token_at: float | None = None
    first_answer_at: float | None = None
    last_token_at: float | None = None
    num_tokens: int = 0
    finished: bool = False
    error: str = ""
    is_read: bool = True
    pacing: Pacing | None = None
    reader_tpot: float | None = None

    def add(self, segment: Segment) -> None:
        """Tokens came."""
        if not self.num_tokens:
            self.first_token_at = segment.first_at
        before = self.num_tokens
        self.num_tokens += segment.num_tokens
        if self.first_answer_at is None and self.num_tokens > self.num_reasoning_tokens:
            k = self.num_reasoning_tokens - before
            self.first_answer_at = Segment(k + 1, *segment[1:]).last_at
        self.segments.append(segment)
        self.last_token_at = segment.last_at

    def extend(self, segments: Sequence[Segment]) -> None:
        """Tokens came, in several rows."""
        first = 0
        while self.first_answer_at is None and first < len(segments):
            self.add(segments[first])
            first += 1
        if first < len(segments):
            self.num_tokens += sum([segment.num_tokens for segment in segments[first:]])
            self.segments += segments[first:]
            self.last_token_at = segments[-1].last_at

    def instants(self, first: int = 0) -> NDArray[np.float64]:
        """Return when the tokens from the ``first`` one on are shown to the client, (n,)."""
        if not self.segments:
            return np.empty(0)
        shown_at = self._came_at()
        if self.pacing is not None:  # reasoning is not paced
            answer = self.num_reasoning_tokens
            shown_at[answer:] = display_times(self.pacing, shown_at[answer:], self.reader_tpot)
        return shown_at[first:]

    def _came_at(self) -> NDArray[np.float64]:
        """Return when each token came to the gateway, (n,)."""
        table = np.array(self.segments, dtype=np.float64)
        counts = table[:, 0].astype(np.int64)
        first_at, step, growth = np.repeat(table[:, 1:], counts, axis=0).T
        k = np.arange(len(step)) - np.repeat(np.cumsum(counts) - counts, counts).astype(np.float64)
        return np.asarray(first_at + k * step + k * (k - 1) / 2 * growth)

    def qoe(self, tpot: float) -> float | None:
        """Return the answer's QoE for a reader who takes ``tpot`` seconds a token."""
        return qoe(self.instants(self.num_reasoning_tokens), tpot) if self.finished else None

    @property
    def ttft(self) -> float | None:
        """Arrival to first token."""
        return None if self.first_token_at is None else self.first_token_at - self.arrival_at

    @property
    def ttfat(self) -> float | None:
        """Arrival to first answering token."""
        return None if self.first_answer_at is None else self.first_answer_at - self.arrival_at

    @property
    def ttlt(self) -> float | None:
        """Arrival to last token, where it finished."""
        if not self.finished or self.last_token_at is None:
            return None
        return self.last_token_at - self.arrival_at

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first."""
        if self.ttlt is None or self.ttft is None or self.num_tokens < 2:
            return None
        return (self.ttlt - self.ttft) / (self.num_tokens - 1)

    @property
    def latencies(self) -> dict[str, float | None]:
        """Return what promises of a class are about, seconds; None for what it has not."""
        return {"ttft": self.ttft, "ttfat": self.ttfat, "tpot": self.tpot, "e2e": self.ttlt}

    def as_served(self, solo: float | None = None) -> ServedRequest | None:
        """Return what its user felt; None where it did not finish, or has no instants."""
        if self.ttft is None or self.ttlt is None or not self.segments:
            return None
        answer = self.instants(self.num_reasoning_tokens)
        reading = Reading.of(answer) if self.is_read else None
        return ServedRequest(
            self.num_reasoning_tokens, self.ttft, self.ttfat, self.ttlt, reading, solo
        )
