"""What clients ask for: arrivals and lengths, drawn from a seed or replayed from a trace."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any

from headway.errors import invalid, require_between, require_over
from headway.sim.cluster import SimRequest
from headway.sim.tables import numbers, refuse_others, tables
from headway.workload.arrivals import Bursts, gaps
from headway.workload.files import load_trace
from headway.workload.lengths import Lengths, parse_lengths
from headway.workload.traces import Trace, TraceRow

BURSTS = "bursts"


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits in seconds; None: none.

    ``ttfat_per_reasoning_token`` is added to ``ttfat`` for every reasoning token.
    """

    ttft: float | None = None
    ttfat: float | None = None
    tpot: float | None = None
    ttlt: float | None = None
    ttfat_per_reasoning_token: float = 0.0

    def __post_init__(self) -> None:
        for limit in fields(self):
            if limit.name == "ttfat_per_reasoning_token":
                require_between(f"slo.{limit.name}", self.ttfat_per_reasoning_token, 0, 3600)
            elif getattr(self, limit.name) is not None:
                require_over(f"slo.{limit.name}", getattr(self, limit.name), 0)


@dataclass(frozen=True, slots=True)
class RequestClass:
    """A kind of request, its share of all, and its own SLO if it has one."""

    name: str
    share: float
    prompt: Lengths
    reasoning: Lengths
    answer: Lengths
    slo: Slo | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """Arrivals and what they ask for.

    ``rate`` in requests/s, 0 for a trace's own; ends by count, by seconds, or with the trace.
    ``trace``: its arrivals, and its lengths where there are no ``classes``.
    """

    classes: Sequence[RequestClass]
    rate: float
    process: str = "poisson"
    burstiness: float = 1.0
    bursts: Bursts = field(default_factory=Bursts)
    num_requests: int | None = None
    seconds: float | None = None
    trace: Trace | None = None

    def __post_init__(self) -> None:
        if self.trace is None:
            require_over("workload.rate", self.rate, 0)
        if self.num_requests is None and self.seconds is None and self.trace is None:
            raise invalid("workload.num_requests", None, "given, or workload.seconds")
        if self.num_requests is not None:
            require_between("workload.num_requests", self.num_requests, 1, 1 << 30)
        if self.seconds is not None:
            require_over("workload.seconds", self.seconds, 0)

    def slo_of(self, request_id: str) -> Slo | None:
        """The SLO of a request's class, if that has one."""
        name = request_id.rpartition("-")[0]
        return next((each.slo for each in self.classes if each.name == name), None)

    def requests(self, seed: int) -> Iterator[SimRequest]:
        """In order of arrival; the same seed gives the same ones."""
        return islice(self._endless(random.Random(seed)), self.num_requests)

    def _endless(self, rng: random.Random) -> Iterator[SimRequest]:
        shares = [each.share for each in self.classes]
        for number, row in enumerate(self._arrivals(rng)):
            now = row.arrival_at
            if self.seconds is not None and now > self.seconds:
                return
            if not self.classes:
                yield _of_row(number, row)
                continue
            (kind,) = rng.choices(self.classes, shares)
            num_prompt, num_reasoning = max(1, kind.prompt(rng)), kind.reasoning(rng)
            num_output = num_reasoning + max(1, kind.answer(rng))
            yield SimRequest(f"{kind.name}-{number}", now, num_prompt, num_output, num_reasoning)

    def _arrivals(self, rng: random.Random) -> Iterator[TraceRow]:
        if self.trace is not None:
            trace = self.trace
            if trace.step:  # a clock that coarse would send them in volleys
                trace = trace.spread(trace.step, rng)
            yield from (trace.faster(self.rate / trace.mean_rate) if self.rate else trace).rows
            return
        now = 0.0
        if self.process == BURSTS:
            drawn = self.bursts.gaps(self.rate, rng)
        else:
            drawn = gaps(self.process, self.rate, rng, burstiness=self.burstiness)
        for gap in drawn:
            now += gap
            yield TraceRow(now)


def _of_row(number: int, row: TraceRow) -> SimRequest:
    if row.prompt_tokens is None or row.output_tokens is None:
        limit = "with prompt_tokens and output_tokens, or workload.classes given"
        raise invalid("workload.trace", f"row {number}", limit)
    lengths = row.prompt_tokens, row.output_tokens
    return SimRequest(
        f"request-{number}", row.arrival_at, *lengths, prefix_hashes=row.prefix_hashes
    )


# --- reading --------------------------------------------------------------------------

_BURSTS = {"burst_factor": "factor", "burst_length": "length", "burst_share": "share"}
_NUMBERS = ("rate", "burstiness", "num_requests", "seconds", *_BURSTS)
_NONE: dict[str, Any] = {"distribution": "constant", "value": 0, "min": 0}


def parse_workload(table: Mapping[str, Any]) -> Workload:
    """From a scenario's table; HeadwayError says what is wrong with it."""
    refuse_others("workload", table, ("process", "trace", "classes", *_NUMBERS))
    for name in _NUMBERS:
        if name in table and type(table[name]) not in (int, float):
            raise invalid(f"workload.{name}", table[name], "a number")
    trace = _trace(table["trace"]) if "trace" in table else None
    if "rate" not in table and trace is None:
        raise invalid("workload.rate", None, "given, in requests/s")
    classes = [] if trace and "classes" not in table else tables(table, "classes")
    plain = ("process", "burstiness", "num_requests", "seconds")
    return Workload(
        [_request_class(each) for each in classes],
        float(table.get("rate", 0.0)),
        bursts=Bursts(**{to: table[name] for name, to in _BURSTS.items() if name in table}),
        trace=trace,
        **{name: table[name] for name in plain if name in table},
    )


def _trace(path: Any) -> Trace:
    if not isinstance(path, str):
        raise invalid("workload.trace", path, "a path")
    return load_trace(Path(path))


def _request_class(table: Mapping[str, Any]) -> RequestClass:
    known = ("name", "share", "prompt", "reasoning", "answer", "slo")
    refuse_others("workload.classes", table, known)
    share = table.get("share", 1.0)
    require_over("workload.classes.share", share, 0)
    prompt, reasoning, answer = (
        parse_lengths(f"workload.classes.{name}", table.get(name, default))
        for name, default in (("prompt", None), ("reasoning", {**_NONE}), ("answer", None))
    )
    slo = table.get("slo")
    own = None if slo is None else Slo(**numbers("workload.classes.slo", slo, Slo))
    return RequestClass(
        str(table.get("name", "request")), float(share), prompt, reasoning, answer, own
    )
