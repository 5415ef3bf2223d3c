"""The plot of a paper's claims: what ``headway reproduce --plots`` draws of each paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from results.plots import figure_in
from studies.claims import Claim

_COLOURS = MappingProxyType({"yes": "tab:green", "no": "tab:red", "open": "tab:gray"})


def claims(folder: Path, paper: str, rows: Sequence[Claim]) -> None:
    """Draw a paper's claims: ours over the baseline, with the spread over the seeds."""
    compared = [row for row in rows if row.baseline]
    places = np.arange(len(compared))
    with figure_in(folder, f"claims-{paper}", f"{paper}: ours over the baseline", 2) as axes:
        axes[1].set_axis_off()
        colours = [_COLOURS[row.verdict] for row in compared]
        ratios = [row.ours / row.baseline for row in compared]
        spreads = [row.spread / abs(row.baseline) for row in compared]
        axes[0].barh(places, ratios, xerr=spreads, color=colours)
        axes[0].axvline(1.0, color="black", linewidth=0.8)
        axes[0].set_yticks(places, [str(place + 1) for place in places])
        axes[0].invert_yaxis()
        text = "\n".join(f"{place + 1}  {row.claim[:70]}" for place, row in enumerate(compared))
        axes[1].text(0, 1, text, va="top", fontsize=6)
