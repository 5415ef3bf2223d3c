"""Requests as ServeGen describes them: each client's arrivals in short windows, and its lengths.

Two files of fitted statistics (Xiang et al., arXiv:2505.09999), no log of requests:

- rates, a CSV: ``client``, ``window_start_s``, ``rate_rps``, ``iat_dist`` (Gamma, Weibull or
  empty), ``param1`` (its shape), a row for every client and window;
- lengths, JSON lines: ``client``, ``window_start_s`` (of a longer window), ``input_tokens``,
  ``output_tokens`` and, for models that reason, ``reason_ratio``, each ``{value: probability}``.

Only the marginals are published. A request's prompt, output and reasoning ratio are drawn
independently: an assumption, and any count of reasoning tokens rests on it.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise
from pathlib import Path

from headway.errors import Code, HeadwayError, invalid, require_between
from headway.workload.lengths import Empirical, empirical
from headway.workload.rows import BadValueError, Record, Rows, instant, open_text, read_rows
from headway.workload.traces import TraceRow

_GAPS: Mapping[str, Callable[[random.Random, float], float]] = {
    "Gamma": lambda rng, shape: rng.gammavariate(shape, 1.0),
    "Weibull": lambda rng, shape: rng.weibullvariate(1.0, shape),
}
_SHAPES = (0.01, 1000.0)  # what floats can draw
_DEFAULT_WINDOW = 600.0


@dataclass(frozen=True, slots=True)
class Window:
    """A client's requests from ``starts_at`` (s) on; ``gaps`` and ``shape`` of their arrivals."""

    client: int
    starts_at: float
    num_requests: int
    gaps: str
    shape: float

    def instants(self, length: float, rng: random.Random) -> list[float]:
        """Return all within ``length`` seconds: gaps of that shape, made to fill the window."""
        drawn = [_GAPS[self.gaps](rng, self.shape) for _ in range(self.num_requests + 1)]
        total = sum(drawn)
        if not total > 0.0:  # shapes near 0 underflow
            return sorted(self.starts_at + length * rng.random() for _ in drawn[1:])
        return [self.starts_at + length * at / total for at in accumulate(drawn[:-1])]


@dataclass(frozen=True, slots=True)
class ClientLengths:
    """A client's from ``starts_at`` (s) on; tokens, and reasoning as a share of the output."""

    starts_at: float
    prompt: Empirical
    output: Empirical
    ratio: Empirical | None

    def row(self, at: float, rng: random.Random) -> TraceRow:
        """Draw a request; its lengths are drawn independently."""
        prompt, output = max(1, int(self.prompt(rng))), max(1, int(self.output(rng)))
        ratio = self.ratio(rng) if self.ratio else 0.0
        reasoning = min(output - 1, round(ratio * output))
        return TraceRow(at, prompt, output, reasoning_tokens=reasoning)


@dataclass(frozen=True, slots=True)
class ServeGen:
    """``windows`` of ``length`` seconds in order; ``lengths`` of every client, in order, too."""

    windows: tuple[Window, ...]
    length: float
    lengths: Mapping[int, tuple[ClientLengths, ...]]

    @property
    def mean_rate(self) -> float:
        """Requests per second from the first window to the end of the last."""
        span = self.windows[-1].starts_at + self.length - self.windows[0].starts_at
        return sum(window.num_requests for window in self.windows) / span

    def starting_at(self, start: float) -> ServeGen:
        """Drop the windows that end by ``start``, seconds; INVALID_ARGUMENT if none is left."""
        kept = tuple(w for w in self.windows if w.starts_at + self.length > start)
        if not any(window.num_requests for window in kept):
            raise invalid("servegen.start", start, f"before {self.windows[-1].starts_at:g} s")
        return replace(self, windows=kept)

    def between(self, start: float, end: float) -> ServeGen:
        """Return the windows that lie from ``start`` on and begin before ``end``, whole ones.

        Seconds from the beginning of the first one.
        """
        first = self.windows[0].starts_at
        kept = tuple(w for w in self.windows if start <= w.starts_at - first < end)
        if not any(window.num_requests for window in kept):
            limit = f"a time with requests; windows last {self.length:g} s"
            raise invalid("workload.start and end", (start, end), limit)
        return replace(self, windows=kept)

    def replay(self, rate: float, rng: random.Random) -> Iterator[TraceRow]:
        """Rows by arrival; time runs faster or slower for a mean of ``rate``/s, 0 for its own."""
        speed = rate / self.mean_rate if rate else 1.0
        start = self.windows[0].starts_at
        for _, windows in groupby(self.windows, lambda window: window.starts_at):
            drawn = [(at, w.client) for w in windows for at in w.instants(self.length, rng)]
            for at, client in sorted(drawn):
                yield self._lengths(client, at).row((at - start) / speed, rng)

    def _lengths(self, client: int, at: float) -> ClientLengths:
        lengths = self.lengths[client]
        return lengths[max(0, bisect_right(lengths, at, key=lambda each: each.starts_at) - 1)]


# --- reading --------------------------------------------------------------------------


def load_servegen(rates: Path, lengths: Path) -> ServeGen:
    """Load its two files, gzipped (.gz) or not; HeadwayError says what is wrong with them."""
    with open_text(rates, "servegen.rates") as lines:
        windows, length = read_rates(lines, str(rates))
    with open_text(lengths, "servegen.lengths") as lines:
        by_client = read_lengths(lines, str(lengths))
    for client in sorted({w.client for w in windows if w.num_requests} - by_client.keys()):
        message = f"{lengths} has no lengths of client {client}, which {rates} has arrivals of"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="servegen.lengths")
    return ServeGen(windows, length, by_client)


def read_rates(lines: Iterable[str], name: str) -> tuple[tuple[Window, ...], float]:
    """Windows in order, and how long each is: the least gap between two beginnings, s."""
    rows, arrivals = read_rows(lines, name), dict[tuple[float, int], tuple[float, str, float]]()
    _require_keys(rows, ("client", "window_start_s", "rate_rps", "iat_dist", "param1"))
    for number, record in rows.records:
        try:
            at, client = instant(record, "window_start_s", "seconds"), _client(record)
            arrivals[at, client] = _arrivals(record)
        except BadValueError as bad:
            raise rows.wrong(number, bad) from None
    starts = sorted({at for at, _ in arrivals})
    length = min((after - at for at, after in pairwise(starts)), default=_DEFAULT_WINDOW)
    windows = tuple(
        Window(client, at, round(rate * length), gaps, shape)
        for (at, client), (rate, gaps, shape) in sorted(arrivals.items())
    )
    if not any(window.num_requests for window in windows):
        raise HeadwayError(Code.INVALID_ARGUMENT, f"{name} has no window with a request")
    return windows, length


def _arrivals(record: Record) -> tuple[float, str, float]:
    """Requests/s, and the gaps' family and shape; Poisson's where there are none."""
    rate = instant(record, "rate_rps", "requests/s")
    if not rate:
        return 0.0, "Gamma", 1.0
    gaps, shape = record.get("iat_dist"), instant(record, "param1", "a shape")
    if gaps not in _GAPS:
        raise BadValueError("iat_dist", gaps, f"one of {', '.join(_GAPS)}")
    low, high = _SHAPES
    if not low <= shape <= high:
        raise BadValueError("param1", shape, f"a shape from {low:g} to {high:g}")
    return rate, str(gaps), shape


def read_lengths(lines: Iterable[str], name: str) -> Mapping[int, tuple[ClientLengths, ...]]:
    """Return lengths by client and time, without windows that have empty histograms."""
    rows, by_client = read_rows(lines, name), dict[int, list[ClientLengths]]()
    _require_keys(rows, ("client", "window_start_s", "input_tokens", "output_tokens"))
    for number, record in rows.records:
        try:
            prompt, output, ratio = (
                _histogram(record, field)
                for field in ("input_tokens", "output_tokens", "reason_ratio")
            )
            at, client = instant(record, "window_start_s", "seconds"), _client(record)
        except BadValueError as bad:
            raise rows.wrong(number, bad) from None
        if prompt and output:
            by_client.setdefault(client, []).append(ClientLengths(at, prompt, output, ratio))
    return {
        client: tuple(sorted(each, key=lambda lengths: lengths.starts_at))
        for client, each in sorted(by_client.items())
    }


def _histogram(record: Record, field: str) -> Empirical | None:
    """Read a histogram, None for an empty one; ratios are from 0 to 1."""
    table = record.get(field, {})
    if not isinstance(table, dict):
        raise BadValueError(field, table, "a table of probabilities by value")
    if not table:
        return None
    try:
        values = [float(value) for value in table]
        if field == "reason_ratio":
            require_between(field, max(values), 0, 1)
        return empirical(values, table.values())
    except (TypeError, ValueError, HeadwayError):
        limit = "probabilities by value, numbers of 0 or more; a ratio is at most 1"
        raise BadValueError(field, table, limit) from None


def _client(record: Record) -> int:
    return int(instant(record, "client", "a number"))


def _require_keys(rows: Rows, keys: tuple[str, ...]) -> None:
    for key in keys:
        if key not in rows.keys:
            limit = f"with {', '.join(keys)}"
            raise rows.wrong(rows.number, BadValueError("the first row", rows.first, limit))
