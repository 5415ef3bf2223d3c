"""The load of a flood: three sides alike, then one of them asks for far more."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headway.errors import Code, HeadwayError, invalid
from headway.metrics import percentile
from headway.service_class import NO_STANDING, Standing, shipped_classes
from headway.workload.arrivals import gaps

PROMPT, OUTPUT = 300, 50
"""Tokens of a request of those who do not flood."""
PROMPTS = (300, 1000, 8000)
"""Tokens of a flood's prompts: as the others', several times as long, and several chunks."""
OTHERS, FLOODER = ("a", "b"), "c"
TENANT, CLASS, NOBODY = "tenant", "class", "none"
SIDES = (TENANT, CLASS, NOBODY)
_OTHERS_CLASS, _FLOODERS_CLASS = "interactive", "batch"


@dataclass(frozen=True, slots=True)
class Flood:
    """A load; ``usual``: prompt tokens over what the cluster can compute, ``flood``: then.

    ``by``: what tells the sides apart: a tenant each, the class of the flood (``batch``, the
    others are ``interactive``), or nothing.
    """

    by: str = TENANT
    usual: float = 0.6
    flood: float = 10.0
    seconds: float = 10.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.by not in SIDES:
            raise invalid("--by", self.by, f"one of {', '.join(SIDES)}")

    def standing(self, side: str) -> Standing:
        """Return the standing of a side's requests."""
        if self.by == TENANT:
            return Standing(side)
        if self.by == CLASS:
            return Standing(service=shipped_classes().find(self.service_class(side)))
        return NO_STANDING

    def service_class(self, side: str) -> str:
        """Return the name of the class of a side's requests; "" for none."""
        if self.by != CLASS:
            return ""
        return _FLOODERS_CLASS if side == FLOODER else _OTHERS_CLASS

    def asked(self, tokens_per_s: float, flood_prompt: int) -> list[FloodRequest]:
        """Return all requests by arrival, Poisson, on a cluster that computes so many tokens/s.

        ``flood_prompt``: tokens of the flood's prompts, 0 for none: then all sides are alike.
        """
        usual = self.usual * tokens_per_s / (len(OTHERS) + 1)
        sides = [self._side(side, usual, PROMPT) for side in OTHERS]
        if flood_prompt:
            sides.append(self._side(FLOODER, self.flood * tokens_per_s, flood_prompt))
        else:
            sides.append(self._side(FLOODER, usual, PROMPT))
        return sorted((each for side in sides for each in side), key=lambda each: each.arrival_at)

    def _side(self, side: str, tokens_per_s: float, prompt: int) -> list[FloodRequest]:
        rng, at, requests = random.Random(f"{self.seed}/{side}"), 0.0, list[FloodRequest]()
        for number, gap in enumerate(gaps("poisson", tokens_per_s / prompt, rng)):
            at += gap
            if at > self.seconds:
                break
            requests.append(FloodRequest(side, number, at, prompt))
        return requests


class FloodRequest(NamedTuple):
    """One request of a side."""

    side: str
    number: int
    arrival_at: float
    num_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Times to first token of those who do not flood, seconds.

    ``flooder_tokens_per_s``: prompt tokens of the other side that were computed meanwhile.
    """

    ttfts: Sequence[float]
    flooder_tokens_per_s: float


def require_all(num_answered: int, num_asked: int) -> None:
    """Refuse figures of a run in which the flood kept others from their answers (HeadwayError)."""
    if num_answered < num_asked:
        lacking = f"{num_asked - num_answered} of {num_asked} requests of the others failed"
        say = f"{lacking}: give a smaller --load or --flood, for figures of all of them"
        raise HeadwayError(Code.UNAVAILABLE, say)


def require_some(asked: Sequence[object]) -> None:
    """Refuse figures of runs in which none of the others asked (HeadwayError)."""
    if not asked:
        say = "none of the others asked in all runs: give more --load, --seconds or --seeds"
        raise HeadwayError(Code.INVALID_ARGUMENT, say)


def flood_row(flood_prompt: int, runs: Sequence[FirstTokens]) -> dict[str, float]:
    """Return the figures of one kind of flood; several runs count together.

    HeadwayError where none of the others asked.
    """
    ttfts = sorted(ttft for each in runs for ttft in each.ttfts)
    require_some(ttfts)
    return {
        "flood_prompt": flood_prompt,
        "num_requests": len(ttfts),
        "p50_ttft": percentile(ttfts, 0.5),
        "p99_ttft": percentile(ttfts, 0.99),
        "flooder_tokens_per_s": sum(each.flooder_tokens_per_s for each in runs) / len(runs),
    }


def with_ratios(rows: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """Return the rows with their ratios to the first, which has no flood."""
    quiet = rows[0]
    for row in rows:
        row["p50_ratio"] = row["p50_ttft"] / quiet["p50_ttft"]
        row["p99_ratio"] = row["p99_ttft"] / quiet["p99_ttft"]
    return list(rows)
