"""Plots of runs, as PNG and SVG, of ``headway simulate``, ``plan`` and ``reproduce``.

Needs matplotlib (the extra ``analysis``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from headway.sim.device import PassTaken
from headway.sim.sampling import Sample
from results.output import require_extra

_METRICS = (("ttft", "TTFT"), ("ttfat", "TTFAT"), ("tpot", "TPOT"), ("ttlt", "TTLT"))
_FIGURES = MappingProxyType(
    {
        "ttft_p99": "P99 TTFT (s)",
        "ttlt_p99": "P99 TTLT (s)",
        "attainment": "share of requests within the SLO",
    }
)
Values = Mapping[str, Sequence[float]]


@contextmanager
def figure_in(folder: Path, name: str, title: str, columns: int = 1) -> Iterator[Any]:
    """Axes to draw on; ``name.png`` and ``name.svg`` are written at the end."""
    require_extra("matplotlib", "--plots")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8 * columns, 3.6), layout="constrained")
    axes = figure.subplots(1, columns)
    yield axes
    figure.suptitle(title)
    folder.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": name}):  # the same run, the same bytes
        figure.savefig(folder / f"{name}.png", dpi=120)
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})


def attainment_over_gpus(
    folder: Path, table: Mapping[str, Mapping[int, float]], goal: float
) -> None:
    """Draw the share of requests within the limits over GPUs, a line a preset."""
    with figure_in(folder, "attainment-over-gpus", "Attainment over GPUs") as axes:
        for name, shares in table.items():
            axes.plot(list(shares), [100 * share for share in shares.values()], "o-", label=name)
        axes.axhline(100 * goal, color="gray", linestyle="--", linewidth=0.8)
        axes.set_xlabel("GPUs")
        axes.set_ylabel("requests within the limits (%)")
        axes.legend(fontsize="small")


def latency_cdfs(folder: Path, runs: Mapping[str, Values]) -> None:
    """Draw a CDF of every metric, a line a run; ``runs`` by name, then seconds by metric."""
    metrics = [
        (m, title) for m, title in _METRICS if any(values.get(m) for values in runs.values())
    ]
    with figure_in(folder, "latency-cdf", "Latency", max(len(metrics), 1)) as axes:
        for axis, (metric, title) in zip(np.atleast_1d(axes), metrics, strict=False):
            for name, values in runs.items():
                ordered = np.sort(np.asarray(values.get(metric, ())))
                shares = np.arange(1, len(ordered) + 1) / max(len(ordered), 1)
                axis.plot(ordered, shares, label=name)
            axis.set(xlabel=f"{title} (s)", ylabel="share of requests", xscale="log")
            axis.legend(fontsize="small")


def load_latency(folder: Path, rows: Sequence[Mapping[str, object]], figure: str) -> None:
    """Draw a figure over the request rate, a line a preset; ``rows`` as in the table."""
    title = _FIGURES.get(figure, figure)
    with figure_in(folder, f"load-{figure}", f"{title} over load") as axis:
        for preset in dict.fromkeys(str(row["preset"]) for row in rows):
            points = sorted(
                (float(str(row["rate"])), float(str(row[figure])))
                for row in rows
                if row["preset"] == preset and row["rate"] is not None and figure in row
            )
            axis.plot([x for x, _ in points], [y for _, y in points], marker="o", label=preset)
        axis.set(xlabel="requests/s", ylabel=title)
        axis.legend(fontsize="small")


def kv_loads(folder: Path, name: str, samples: Sequence[Sample]) -> None:
    """KV tokens over time: every unit, and the band of one standard deviation about the mean."""
    seen = [sample for sample in samples if sample.kv_tokens]
    units = sorted({unit for sample in seen for unit in sample.kv_tokens})
    at = np.array([sample.at for sample in seen])
    loads = np.full((len(seen), len(units)), np.nan)  # not there at that time
    for place, sample in enumerate(seen):
        loads[place] = [sample.kv_tokens.get(unit, np.nan) for unit in units]
    with figure_in(folder, f"kv-load-{name}", f"KV load, {name}") as axis:
        axis.plot(at, loads, color="tab:gray", linewidth=0.5, alpha=0.6)
        mean, spread = np.nanmean(loads, axis=1), np.nanstd(loads, axis=1)
        axis.plot(at, mean, color="tab:blue", label="mean")
        axis.fill_between(at, mean - spread, mean + spread, alpha=0.3, label="±1σ over units")
        axis.set(xlabel="time (s)", ylabel="KV tokens of a DP unit")
        axis.legend(fontsize="small")


def timeline(folder: Path, name: str, passes: Sequence[PassTaken]) -> None:
    """Draw one instance's passes: how long each took, prompt tokens and decoding requests."""
    with figure_in(folder, f"timeline-{name}", f"One instance, {name}", 3) as axes:
        at = [taken.began_at for taken in passes]
        steps = [1e3 * (taken.ended_at - taken.began_at) / taken.num_steps for taken in passes]
        axes[0].step(at, steps, where="post", linewidth=0.6)
        axes[0].set(xlabel="time (s)", ylabel="ms a pass")
        tokens = [taken.prefill_tokens for taken in passes]
        axes[1].vlines(at, 0, tokens, linewidth=0.6)  # in a long run bars are thinner than a pixel
        axes[1].set(xlabel="time (s)", ylabel="prompt tokens in the pass")
        axes[2].step(at, [taken.batch for taken in passes], where="post", linewidth=0.6)
        axes[2].set(xlabel="time (s)", ylabel="decoding requests")


def provisioned(
    folder: Path,
    name: str,
    have: Mapping[str, Sequence[tuple[float, float]]],
    need: Sequence[tuple[float, float]],
) -> None:
    """GPUs that run or start, a line a policy, over those that the load needs; all by time, s."""
    with figure_in(folder, f"provisioned-{name}", f"GPUs, {name}") as axis:
        at, needed = zip(*need, strict=True)
        axis.fill_between(at, needed, step="post", color="tab:gray", alpha=0.4, label="needed")
        for policy, points in have.items():
            axis.step(*zip(*points, strict=True), where="post", linewidth=1, label=policy)
        axis.set(xlabel="time (s)", ylabel="GPUs")
        axis.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))


def burst(
    folder: Path,
    ttft: Mapping[str, Sequence[tuple[float, float]]],
    workers: Mapping[str, Sequence[tuple[float, int]]],
    between: tuple[float, float],
) -> None:
    """TTFT and workers over time, s, a line a policy; the burst is ``between`` two instants."""
    with figure_in(folder, "burst", "A burst, policy by policy", 2) as axes:
        for name, points in ttft.items():
            axes[0].plot(*zip(*points, strict=True), linewidth=1, label=name)
        for name, sizes in workers.items():
            axes[1].step(*zip(*sizes, strict=True), where="post", linewidth=1, label=name)
        for axis in axes:
            axis.axvspan(*between, color="tab:gray", alpha=0.2)
        axes[0].set(xlabel="time (s)", ylabel="median TTFT of a second (s)", yscale="log")
        axes[1].set(xlabel="time (s)", ylabel="workers")
        axes[1].legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
