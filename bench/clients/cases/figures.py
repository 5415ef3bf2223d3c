"""The gateway's counts and times of a tool's run, beside the tool's own."""

from __future__ import annotations

import urllib.request
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from .asked import SECONDS, At, Figures


class ToolFigures(NamedTuple):
    """A tool's own figures: counts, and means in seconds over its requests."""

    requests: int
    output_tokens: int
    ttft: float
    tpot: float
    e2e: float


class GatewayFigures:
    """The gateway's counters and histograms since now."""

    def __init__(self, at: At) -> None:
        """Read them as they stand."""
        self._url = f"{at.url}/metrics"
        self._before = self._read()

    def compared(self, tool: ToolFigures) -> Figures:
        """Return both, the tool's first; their counts have to be equal."""
        now = self._read()
        since = {name: value - self._before.get(name, 0.0) for name, value in now.items()}
        requests = since["e2e_seconds_count"]
        assert tool.requests == requests, f"the gateway ended {requests} requests"
        output_tokens = since["output_tokens_total"]
        assert tool.output_tokens == output_tokens, (
            f"{tool.output_tokens} tokens, {output_tokens} here"
        )
        means = {
            each: since[f"{each}_seconds_sum"] / since[f"{each}_seconds_count"]
            for each in ("ttft", "tpot", "e2e")
        }
        ours = ToolFigures(int(requests), int(output_tokens), **means)
        return {"client": tool._asdict(), "gateway": ours._asdict()}

    def _read(self) -> Mapping[str, float]:
        """Return the sum of each metric over its labels."""
        sums: dict[str, float] = defaultdict(float)
        with urllib.request.urlopen(self._url, timeout=SECONDS) as answer:
            for line in answer.read().decode().splitlines():
                name, _, value = line.rpartition(" ")
                if name.startswith("headway_gateway_"):
                    sums[name.partition("{")[0].removeprefix("headway_gateway_")] += float(value)
        return sums
