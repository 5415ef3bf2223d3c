"""The comparison of gateways as a table and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from results.output import make_table, write_json

_COLUMNS = ("+p50 ms", "+p99 ms", "requests/s", "µs/request", "tokens/s", "µs/token")
Shown = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one gateway in one round; latencies and CPU in seconds, None where unknown.

    ``latency`` is of a whole one-token answer with nothing else in flight.
    """

    latency_p50: float
    latency_p99: float
    requests_per_s: float
    cpu_per_request: float | None
    tokens_per_s: float
    cpu_per_token: float | None


def middle(rounds: Sequence[Figures]) -> Figures:
    """Return the median of each figure over the rounds."""

    def median(name: str) -> float | None:
        values = [value for each in rounds if (value := getattr(each, name)) is not None]
        return statistics.median(values) if values else None

    return Figures(**{name: median(name) for name in Figures.__dataclass_fields__})  # type: ignore[arg-type]  # None where all are


def print_comparison(
    console: Console,
    medians: Mapping[str, Figures],
    missing: Mapping[str, str],
    setting: Mapping[str, object],
) -> None:
    """Medians over the rounds, then the peers' as multiples of ours."""
    rows = {name: _shown(figures, medians["none"]) for name, figures in medians.items()}
    console.print(_table("gateway", rows, ""))
    ours = rows["headway"]
    peers = {
        name: _multiples(row, ours) for name, row in rows.items() if name not in ("none", "headway")
    }
    if peers:
        console.print(_table("times headway", peers, "×"))
    lines = [
        f"{setting['streams']} in flight, {setting['tokens']} tokens a stream, medians of "
        f"{setting['rounds']} rounds of {setting['seconds']:g} s on {setting['num_cores']} cores.",
        "none: the mock backend itself. +p50, +p99: added to it, for a one-token answer alone. "
        "µs: CPU of the gateway's processes.",
        "headway tokenises, schedules and makes text of tokens; the others pass on bytes.",
        *(f"left out: {name}: {why}" for name, why in missing.items()),
    ]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _table(title: str, rows: Mapping[str, Shown], unit: str) -> Table:
    cells = [(name, *(_cell(value, unit) for value in row)) for name, row in rows.items()]
    table = make_table((title, *_COLUMNS), cells, box=box.HEAVY_HEAD)
    table.columns[0].no_wrap = True
    return table


def _multiples(row: Shown, ours: Shown) -> Shown:
    """None where either figure is unknown or no cost at all."""
    pairs = zip(row, ours, strict=True)
    return tuple(a / b if a is not None and b is not None and b > 0.0 else None for a, b in pairs)


def _shown(figures: Figures, none: Figures) -> Shown:
    """Return the columns: milliseconds, rates and microseconds."""
    cpu = (figures.cpu_per_request, figures.cpu_per_token)
    per_request, per_token = (None if value is None else value * 1e6 for value in cpu)
    return (
        (figures.latency_p50 - none.latency_p50) * 1e3,
        (figures.latency_p99 - none.latency_p99) * 1e3,
        figures.requests_per_s,
        per_request,
        figures.tokens_per_s,
        per_token,
    )


def _cell(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return (f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}") + unit


def write_comparison(
    path: Path,
    setting: Mapping[str, object],
    medians: Mapping[str, Figures],
    rounds: Mapping[str, Sequence[Figures]],
    missing: Mapping[str, str],
) -> None:
    """Write figures, in seconds throughout."""
    content = {
        "config": dict(setting),
        "medians": {name: asdict(figures) for name, figures in medians.items()},
        "rounds": {name: [asdict(each) for each in figures] for name, figures in rounds.items()},
        "left_out": dict(missing),
    }
    write_json(path, content, indent=1)
