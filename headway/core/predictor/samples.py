"""Samples that a predictor learns from: hidden states of requests whose length is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import NDArray

from headway.errors import require_between
from headway.forward_pass import HiddenStates
from headway.request import FinishReason, StreamKey


@dataclass(frozen=True, slots=True)
class SeenStates:
    """States of running requests; ``num_output_tokens``: each one's when its state was computed.

    ``num_prompt_tokens``: each request's, or empty if unknown.
    """

    hidden: HiddenStates
    num_output_tokens: tuple[int, ...]
    num_prompt_tokens: tuple[int, ...] = ()

    @property
    def counts(self) -> NDArray[np.float32]:
        """Return the tokens of each prompt and of its output so far, (n, 2); NaN where unknown."""
        prompt = self.num_prompt_tokens or (nan,) * len(self.num_output_tokens)
        return np.array([prompt, self.num_output_tokens], dtype=np.float32).T


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """An ended request and its number of generated tokens."""

    key: StreamKey
    num_output_tokens: int
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Hidden states (n, d), the tokens that followed each (n,), and each one's request (n,).

    ``counts``: prompt tokens and output tokens so far, (n, 2), NaN if unknown.
    """

    hidden: NDArray[np.float16]
    remaining: NDArray[np.float32]
    owners: NDArray[np.int64]
    counts: NDArray[np.float32] | None = None


MOST_ROWS = 1024
"""States kept of one request, at even distances: a worker may ask of one again and again."""
_Row = tuple[NDArray[np.float32], NDArray[np.float16]]


class SampleBuffer:
    """States of running requests, and samples of the last ones that ended.

    A request that was cut short does not reveal its length, so its states are dropped. Beyond
    ``num_running`` running and ``num_ended`` ended requests the oldest are dropped, and beyond
    ``most_bytes`` of states, too, those that ended first. Of ``MOST_ROWS`` states of one request
    every other one is.
    """

    def __init__(
        self, num_running: int = 4096, num_ended: int = 4096, most_bytes: int = 2**29
    ) -> None:
        require_between("num_running", num_running, 1, 1_000_000)
        require_between("num_ended", num_ended, 1, 1_000_000)
        self._num_running = num_running
        self._num_kept = num_ended
        self._most_bytes = most_bytes
        self._num_bytes = 0
        self._running: dict[StreamKey, list[_Row]] = {}
        self._ended: dict[int, tuple[int, list[_Row]]] = {}
        self.num_ended = 0
        """Requests whose length has become known, since the start."""

    def see(self, seen: SeenStates) -> None:
        """Add these states; skip rows with values that are not finite."""
        good = np.atleast_1d(np.isfinite(seen.hidden.values).all(axis=1))
        counts = seen.counts
        for place, key in enumerate(seen.hidden.keys):
            if good[place]:
                row = seen.hidden.values[place].copy()  # not all of its batch
                rows = self._running.setdefault(key, [])
                if len(rows) >= MOST_ROWS:
                    self._weigh(rows[1::2], -1)
                    del rows[1::2]
                rows.append((counts[place], row))
                self._weigh(rows[-1:], 1)
        while len(self._running) > self._num_running:
            self._drop_running()
        while self._num_bytes > self._most_bytes:
            if self._ended:
                self._drop_ended()
            else:
                self._drop_running()

    def _weigh(self, rows: Sequence[_Row], sign: int) -> None:
        """Count rows in (1) or out (-1)."""
        self._num_bytes += sign * sum(row.nbytes for _, row in rows)

    def _drop_running(self) -> None:
        self._weigh(self._running.pop(next(iter(self._running))), -1)

    def _drop_ended(self) -> None:
        self._weigh(self._ended.pop(next(iter(self._ended)))[1], -1)

    def end(self, ended: RequestEnded) -> None:
        """Turn a request's states into samples if it ended by itself."""
        rows = self._running.pop(ended.key, None)
        if not rows:
            return
        if ended.finish_reason is not FinishReason.STOP:
            self._weigh(rows, -1)
            return
        self._ended[self.num_ended] = (ended.num_output_tokens, rows)
        self.num_ended += 1
        if len(self._ended) > self._num_kept:
            self._drop_ended()

    def samples(self) -> Samples | None:
        """Return all samples of the kept requests; None before the first."""
        rows = [
            (row, total - counts[1], owner, counts)
            for owner, (total, pairs) in self._ended.items()
            for counts, row in pairs
            if counts[1] <= total
        ]
        if not rows:
            return None
        return Samples(
            np.stack([row for row, *_ in rows]),
            np.array([left for _, left, *_ in rows], dtype=np.float32),
            np.array([owner for _, _, owner, _ in rows], dtype=np.int64),
            np.stack([counts for *_, counts in rows]),
        )
