"""Files of hop costs: what `headway profile run` has measured, and a scenario names."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from headway.errors import Code, HeadwayError
from headway.sim.hop_costs import HopCosts
from headway.tables import parse, read


def hops_text(hops: HopCosts) -> str:
    """Return the costs as a TOML text, which ``load_hops`` reads back equal."""
    known = {name: value for name, value in asdict(hops).items() if value is not None}
    return "".join(f"{name} = {value!r}\n" for name, value in known.items())


def load_hops(path: Path) -> HopCosts:
    """Return the costs in a file; HeadwayError for one that cannot be read."""
    source = f"hop costs {path}"
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        message = f"{source} cannot be read: {error}"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="hops") from error
    return read(HopCosts, parse(text, source, "hops"), source)
