"""Recorded traces at loads that are near what the plain deployment carries.

The cells are those of ``dominance`` that have a trace, each at requests/s of its own, so that no
saturation is measured first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from studies import dominance
from studies.cells import RECORDED
from studies.claims import Claim

PAPER = "traces"
RATES: Mapping[str, float] = MappingProxyType(
    {"Azure conversation": 6.519, "Azure code": 1.0, "Mooncake": 2.0}
)
"""Requests/s: the plain deployment's best topology keeps about 70 to 95 % of the SLOs."""


def reproduce(seeds: Sequence[int], num_processes: int) -> list[Claim]:
    """Compare all systems on every trace; one whose file is not there is named and left out."""
    cells = {name: replace(RECORDED[name], rate=rate) for name, rate in RATES.items()}
    return dominance.compare(PAPER, cells, seeds, num_processes)
