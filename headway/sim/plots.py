"""Plots of runs, as PNG and SVG: what ``headway simulate --plots`` and ``reproduce --plots`` draw.

Needs matplotlib (the extra ``analysis``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headway.errors import Code, HeadwayError
from headway.sim.device import PassTaken
from headway.sim.sampling import Sample

if TYPE_CHECKING:
    from headway.sim.studies.claims import Claim

_METRICS = (("ttft", "TTFT"), ("ttfat", "TTFAT"), ("tpot", "TPOT"), ("ttlt", "TTLT"))
Values = Mapping[str, Sequence[float]]


@contextmanager
def _figure(folder: Path, name: str, title: str, columns: int = 1) -> Iterator[Any]:
    """Axes to draw on; both files are written at the end."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        message = "plots need matplotlib: pip install 'headway[analysis]'"
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="plots") from None
    figure = Figure(figsize=(4.8 * columns, 3.6), layout="constrained")
    axes = figure.subplots(1, columns)
    yield axes
    figure.suptitle(title)
    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("png", "svg"):
        figure.savefig(
            folder / f"{name}.{kind}", dpi=120, metadata={"Date": None} if kind == "svg" else None
        )


def latency_cdfs(folder: Path, runs: Mapping[str, Values]) -> None:
    """A CDF of every metric, a line a run; ``runs`` by name, then seconds by metric."""
    shown = [(m, title) for m, title in _METRICS if any(values.get(m) for values in runs.values())]
    with _figure(folder, "latency-cdf", "Latency", max(len(shown), 1)) as axes:
        for axis, (metric, title) in zip(np.atleast_1d(axes), shown, strict=False):
            for name, values in runs.items():
                ordered = np.sort(np.asarray(values.get(metric, ())))
                shares = np.arange(1, len(ordered) + 1) / max(len(ordered), 1)
                axis.plot(ordered, shares, label=name)
            axis.set(xlabel=f"{title} (s)", ylabel="share of requests", xscale="log")
            axis.legend(fontsize="small")


def load_latency(folder: Path, rows: Sequence[Mapping[str, object]], figure: str) -> None:
    """A figure over the request rate, a line a preset; ``rows`` as in the table."""
    with _figure(folder, f"load-{figure}", f"{figure} over load") as axis:
        for preset in dict.fromkeys(str(row["preset"]) for row in rows):
            points = sorted(
                (float(str(row["rate"])), float(str(row[figure])))
                for row in rows
                if row["preset"] == preset and row["rate"] is not None and figure in row
            )
            axis.plot([x for x, _ in points], [y for _, y in points], marker="o", label=preset)
        axis.set(xlabel="requests/s", ylabel=figure)
        axis.legend(fontsize="small")


def kv_loads(folder: Path, name: str, samples: Sequence[Sample]) -> None:
    """KV tokens over time: every unit, and the band of one standard deviation about the mean."""
    units = sorted({unit for sample in samples for unit in sample.kv_tokens})
    at = np.array([sample.at for sample in samples])
    loads = np.array([[s.kv_tokens.get(unit, 0) for unit in units] for s in samples], dtype=float)
    with _figure(folder, f"kv-load-{name}", f"KV load, {name}") as axis:
        axis.plot(at, loads, color="tab:gray", linewidth=0.5, alpha=0.6)
        mean, spread = loads.mean(axis=1), loads.std(axis=1)
        axis.plot(at, mean, color="tab:blue", label="mean")
        axis.fill_between(at, mean - spread, mean + spread, alpha=0.3, label="±1σ over units")
        axis.set(xlabel="time (s)", ylabel="KV tokens of a DP unit")
        axis.legend(fontsize="small")


def timeline(folder: Path, name: str, passes: Sequence[PassTaken]) -> None:
    """One instance: when its passes ran, with how many prompt tokens and decoding requests."""
    with _figure(folder, f"timeline-{name}", f"One instance, {name}", 2) as axes:
        at = [taken.began_at for taken in passes]
        widths = [taken.ended_at - taken.began_at for taken in passes]
        axes[0].bar(at, [taken.prefill_tokens for taken in passes], width=widths, align="edge")
        axes[0].set(xlabel="time (s)", ylabel="prompt tokens in the pass")
        axes[1].step(at, [taken.batch for taken in passes], where="post")
        axes[1].set(xlabel="time (s)", ylabel="decoding requests")


def provisioned(
    folder: Path, name: str, at: Sequence[float], have: Sequence[float], need: Sequence[float]
) -> None:
    """Instances that there are against those that the load needs."""
    with _figure(folder, f"provisioned-{name}", f"Instances, {name}") as axis:
        axis.step(at, have, where="post", label="provisioned")
        axis.step(at, need, where="post", label="needed")
        axis.set(xlabel="time (s)", ylabel="instances")
        axis.legend(fontsize="small")


def claims(folder: Path, paper: str, rows: Sequence[Claim]) -> None:
    """A paper's claims: ours over the baseline, with the spread over the seeds."""
    shown = [row for row in rows if row.baseline]
    places = np.arange(len(shown))
    with _figure(folder, f"claims-{paper}", f"{paper}: ours over the baseline", 2) as axes:
        axes[1].set_axis_off()
        colours = ["tab:green" if row.holds else "tab:red" for row in shown]
        ratios = [row.ours / row.baseline for row in shown]
        spreads = [row.spread / abs(row.baseline) for row in shown]
        axes[0].barh(places, ratios, xerr=spreads, color=colours)
        axes[0].axvline(1.0, color="black", linewidth=0.8)
        axes[0].set_yticks(places, [str(place + 1) for place in places])
        axes[0].invert_yaxis()
        text = "\n".join(f"{place + 1}  {row.claim[:70]}" for place, row in enumerate(shown))
        axes[1].text(0, 1, text, va="top", fontsize=6)
