"""TTFT feasibility: whether a prompt's first token can still come in time (TokenScale, table 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import TypeVar

from headway.bounds import Bounded, between, over
from headway.cost.buckets import Buckets
from headway.cost.velocity import MEDIUM_TTFT_SLO
from headway.policies.dispatch.protocol import Waiting

W = TypeVar("W", bound=Waiting)
_SHORT, _MEDIUM, _ = Buckets().input_tokens


@dataclass(frozen=True, slots=True)
class TtftSlos(Bounded):
    """SLOs of the first token, seconds: short prompts (256 tokens), medium (1024), longer.

    ``margin``: share of the SLO that is kept for what a velocity leaves out (dispatch, the rest
    of the pass that runs; the paper's is 0).
    """

    ttft_short: float = over(0, default=0.25)
    ttft_medium: float = over(0, default=MEDIUM_TTFT_SLO)
    ttft_long: float = over(0, default=2.0)
    margin: float = between(0, 0.9, default=0.1)

    def ttft_slo(self, num_tokens: int, short: int = _SHORT, medium: int = _MEDIUM) -> float:
        """Return the SLO of a prompt, seconds; the edges are in tokens."""
        if num_tokens <= short:
            return self.ttft_short
        return self.ttft_medium if num_tokens <= medium else self.ttft_long

    def limit(self, request: Waiting) -> float:
        """Return a request's SLO, seconds: what its class promises, else by its prompt."""
        promised = request.due_at - request.arrival_at
        return promised if promised > 0 else self.ttft_slo(request.num_tokens)

    def left(self, request: Waiting, *, now: float) -> float:
        """Return the seconds that are left of a request's SLO, the margin kept."""
        return self.limit(request) * (1 - self.margin) - max(0.0, now - request.arrival_at)


def infeasible(
    waiting: Iterable[Waiting], ahead: Iterable[float], velocity: float, slos: TtftSlos, now: float
) -> Iterable[Waiting]:
    """Yield the requests that no prefiller would serve in time.

    ``ahead``: seconds until each prefiller would begin a prompt dispatched to it. The others count
    for those behind them: each goes where it would begin first. ``velocity``: tokens/s of one.
    """
    starts = list(ahead)
    heapify(starts)
    for request in waiting:
        ends = starts[0] + request.num_tokens / velocity if starts else float("inf")
        if ends > slos.left(request, now=now):
            yield request
        else:
            heapreplace(starts, ends)


def in_time_first(waiting: Sequence[W], steps_back: Callable[[W], bool]) -> Sequence[Sequence[W]]:
    """Return readers' first tokens but for those that step back, and behind them all others.

    All as one if nobody steps back.
    """
    back = {request.key for request in waiting if steps_back(request)}
    if not back:
        return (waiting,)
    is_ahead = [request.opens_answer and request.key not in back for request in waiting]
    paired = [*zip(waiting, is_ahead, strict=True)]
    return [r for r, ahead in paired if ahead], [r for r, ahead in paired if not ahead]
