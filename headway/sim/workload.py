"""Workloads: arrivals and lengths, drawn from a seed or replayed from a trace."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any

from headway.bounds import Bounded, between, one_of, over
from headway.errors import invalid, require_between, require_over
from headway.sim.cluster import SimRequest
from headway.tables import number, read, refuse_others, tables
from headway.workload.arrivals import PROCESSES, Bursts, gaps
from headway.workload.lengths import Lengths, parse_lengths
from headway.workload.servegen import ServeGen, load_servegen
from headway.workload.traces import Recorded, TraceRow, load_trace

BURSTS = "bursts"


@dataclass(frozen=True, slots=True)
class SloLimits(Bounded):
    """Limits in seconds; None: none.

    ``ttfat_per_reasoning_token`` is added to ``ttfat`` for every reasoning token.
    """

    ttft: float | None = over(0, default=None)
    ttfat: float | None = over(0, default=None)
    tpot: float | None = over(0, default=None)
    ttlt: float | None = over(0, default=None)
    ttfat_per_reasoning_token: float = between(0, 3600, default=0.0)


@dataclass(frozen=True, slots=True)
class RequestClass:
    """A kind of request, its share of all, and its own SLO, instead of the others', if any.

    ``read``: the share whose clients read the answer as it comes; others wait for its end.
    """

    name: str
    share: float
    prompt: Lengths
    reasoning: Lengths
    answer: Lengths
    slo: SloLimits | None = None
    read: float = 1.0


@dataclass(frozen=True, slots=True)
class Workload(Bounded):
    """Arrivals and what they ask for.

    ``rate`` in requests/s, 0 for a trace's own; ends by count, by seconds, or with the trace.
    ``trace``: its arrivals, and its lengths where there are no ``classes``; with a ``rate`` its
    time runs faster or slower.
    """

    classes: Sequence[RequestClass]
    rate: float
    process: str = one_of(*PROCESSES, BURSTS, default="poisson", name="workload.process")
    burstiness: float = over(0, default=1.0, name="workload.burstiness")
    bursts: Bursts = field(default_factory=Bursts)
    num_requests: int | None = None
    seconds: float | None = over(0, default=None, name="workload.seconds")
    trace: Recorded | None = None

    def __post_init__(self) -> None:
        if self.trace is None:
            require_over("workload.rate", self.rate, 0)
        Bounded.__post_init__(self)
        if self.num_requests is None and self.seconds is None and self.trace is None:
            raise invalid("workload.num_requests", None, "given, or workload.seconds")
        if self.num_requests is not None:
            if type(self.num_requests) is not int:
                raise invalid("workload.num_requests", self.num_requests, "a whole number")
            require_between("workload.num_requests", self.num_requests, 1, 1 << 30)

    def slo_of(self, request_id: str) -> SloLimits | None:
        """Return the SLO of a request's class, if that has one."""
        name = request_id.rpartition("-")[0]
        return next((each.slo for each in self.classes if each.name == name), None)

    def requests(self, seed: int) -> Iterator[SimRequest]:
        """Return the requests by arrival; the same seed gives the same ones."""
        return islice(self._endless(random.Random(seed)), self.num_requests)

    def _endless(self, rng: random.Random) -> Iterator[SimRequest]:
        shares = [each.share for each in self.classes]
        for place, row in enumerate(self._arrivals(rng)):
            now = row.arrival_at
            if self.seconds is not None and now > self.seconds:
                return
            if not self.classes:
                yield _of_row(place, row)
                continue
            (kind,) = rng.choices(self.classes, shares)
            num_prompt, num_reasoning = max(1, kind.prompt(rng)), kind.reasoning(rng)
            num_output = num_reasoning + max(1, kind.answer(rng))
            is_read = kind.read >= 1.0 or rng.random() < kind.read
            yield SimRequest(
                f"{kind.name}-{place}", now, num_prompt, num_output, num_reasoning, is_read=is_read
            )

    def _arrivals(self, rng: random.Random) -> Iterator[TraceRow]:
        if self.trace is not None:
            yield from self.trace.replay(self.rate, rng)
            return
        now = 0.0
        if self.process == BURSTS:
            drawn = self.bursts.gaps(self.rate, rng)
        else:
            drawn = gaps(self.process, self.rate, rng, burstiness=self.burstiness)
        for gap in drawn:
            now += gap
            yield TraceRow(now)


def _of_row(place: int, row: TraceRow) -> SimRequest:
    if row.prompt_tokens is None or row.output_tokens is None:
        limit = "with prompt_tokens and output_tokens, or workload.classes given"
        raise invalid("workload.trace", f"row {place}", limit)
    lengths = row.prompt_tokens, row.output_tokens
    return SimRequest(
        f"request-{place}", row.arrival_at, *lengths, row.reasoning_tokens, row.prefix_hashes
    )


# --- reading --------------------------------------------------------------------------

_BURSTS = {f"burst_{each.name}": each.name for each in fields(Bursts)}
_NUMBERS = ("rate", "burstiness", "num_requests", "seconds", *_BURSTS)
_NONE: dict[str, Any] = {"distribution": "constant", "value": 0, "min": 0}


def parse_workload(table: Mapping[str, Any], folder: Path = Path()) -> Workload:
    """Parse a scenario's table; HeadwayError says what is wrong with it.

    Files that it names begin in ``folder``.
    """
    refuse_others("workload", table, ("process", "trace", "servegen", "classes", *_NUMBERS))
    for name in _NUMBERS:
        if name in table:
            number(f"workload.{name}", table[name])
    for name, process in (("burstiness", "gamma"), *((name, BURSTS) for name in _BURSTS)):
        if name in table and table.get("process") != process:
            raise invalid(f"workload.{name}", table[name], f'given with process = "{process}"')
    trace = _recorded(table, folder)
    if "rate" not in table and trace is None:
        raise invalid("workload.rate", None, "given, in requests/s")
    classes = [] if trace and "classes" not in table else tables(table, "classes")
    plain = ("process", "burstiness", "num_requests", "seconds")
    return Workload(
        [_request_class(each, folder) for each in classes],
        float(table.get("rate", 0.0)),
        bursts=Bursts(**{to: table[name] for name, to in _BURSTS.items() if name in table}),
        trace=trace,
        **{name: table[name] for name in plain if name in table},
    )


def _recorded(table: Mapping[str, Any], folder: Path) -> Recorded | None:
    """Return the trace that gives the arrivals instead of a process, if any."""
    given = [name for name in ("trace", "servegen") if name in table]
    if not given:
        return None
    if "process" in table:
        given.append("process")
    if len(given) > 1:
        raise invalid("workload's keys", given, "one of these: each says when requests come")
    if given == ["trace"]:
        path = folder / _text("workload.trace", table["trace"])
        most = table.get("num_requests")  # a week has millions
        return load_trace(path, None if most is None else max(1, most))
    return _servegen(table["servegen"], folder)


def _servegen(table: Any, folder: Path) -> ServeGen:
    refuse_others("workload.servegen", table, ("rates", "lengths", "start"))
    rates, lengths = (
        folder / _text(f"workload.servegen.{name}", table.get(name))
        for name in ("rates", "lengths")
    )
    start = number("workload.servegen.start", table.get("start", 0.0))
    require_between("workload.servegen.start", start, 0, 1e9)
    return load_servegen(rates, lengths).starting_at(start)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise invalid(name, value, "a path")
    return value


def _request_class(table: Mapping[str, Any], folder: Path) -> RequestClass:
    known = ("name", "share", "prompt", "reasoning", "answer", "slo", "read")
    refuse_others("workload.classes", table, known)
    share = number("workload.classes.share", table.get("share", 1.0))
    require_over("workload.classes.share", share, 0)
    prompt, reasoning, answer = (
        parse_lengths(f"workload.classes.{name}", table.get(name, default), folder)
        for name, default in (("prompt", None), ("reasoning", {**_NONE}), ("answer", None))
    )
    slo = table.get("slo")
    own = None if slo is None else read(SloLimits, slo, "workload.classes.slo")
    read_share = number("workload.classes.read", table.get("read", 1.0))
    require_between("workload.classes.read", read_share, 0, 1)
    name = str(table.get("name", "request"))
    return RequestClass(name, share, prompt, reasoning, answer, own, read_share)
