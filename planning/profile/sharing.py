"""How much longer passes take beside those of other workers, and while requests come."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from headway.cost.pass_time import PassTime
from headway.sim.hop_costs import REQUEST_WINDOW, Beside, HopCosts
from planning.profile.live import LiveLoad
from planning.profile.model import WorkerRecord
from planning.profile.spans import Span


@dataclass(frozen=True, slots=True)
class LiveRun:
    """One live run: what its clients saw, and what its workers recorded."""

    load: LiveLoad
    records: Sequence[WorkerRecord]

    def num_busy(self, at: float) -> int:
        """Return how many workers computed at an instant, by the records' clock."""
        return sum(record.is_busy_at(at) for record in self.records)


class SharedPass(NamedTuple):
    """A recorded pass among others: seconds as predicted, and as it took."""

    predicted: float
    took: float
    beside: Beside


def shared_passes(run: LiveRun, pass_time: PassTime) -> Iterator[SharedPass]:
    """Yield every recorded pass of a run, with what ran in its middle and what came before it."""
    came_at = run.load.came_at
    for record in run.records:
        for measured, began_at in zip(record.passes, record.began_at, strict=True):
            middle = began_at + measured.seconds / 2
            num_came = bisect_right(came_at, began_at)
            num_came -= bisect_right(came_at, began_at - REQUEST_WINDOW)
            beside = Beside(
                measured.share.prefill_tokens > 0,
                sum(other is record or other.is_busy_at(middle) for other in run.records),
                num_came / REQUEST_WINDOW,
            )
            yield SharedPass(pass_time.seconds(*measured.share), measured.seconds, beside)


def measure_sharing(
    runs: Sequence[LiveRun], pass_time: PassTime, hops: HopCosts
) -> tuple[float, HopCosts]:
    """Return how much longer passes take that are alone, and the costs with what others take.

    By least squares of shares, each weighted by its pass, so that all passes together take as long
    as they did. A loss below 0 is none, and one that no pass had stays as it is.
    """
    passes = [each for run in runs for each in shared_passes(run, pass_time)]
    terms = np.array([_terms(each.beside, hops.cores) for each in passes])
    weights = np.sqrt([each.predicted for each in passes])
    shares = np.array([each.took / each.predicted for each in passes])
    met = [n for n, column in enumerate(terms.T) if column.any()]
    kept = met
    while True:
        fitted, *_ = np.linalg.lstsq(terms[:, kept] * weights[:, None], shares * weights)
        if min(fitted) >= 0.0 or len(kept) == 1:
            break
        kept = [each for each in kept if each != kept[1 + int(np.argmin(fitted[1:]))]]
    alone = float(fitted[0])
    losses = {_LOSSES[n]: 0.0 for n in met[1:]}
    losses |= {_LOSSES[n]: float(each) / alone for n, each in zip(kept, fitted, strict=True) if n}
    return alone, replace(hops, **losses)  # type: ignore[arg-type]  # fields by name


def measure_wait(runs: Sequence[tuple[LiveRun, Sequence[Span]]], hops: HopCosts) -> HopCosts:
    """Return the costs with the time that a message waits where workers leave no core free.

    By least squares over all hops but ``token``, from what each is without others.
    """
    products = squares = 0.0
    for run, spans in runs:
        for span in spans:
            num_late = hops.num_late(run.num_busy(span.began_at - run.load.epoch))
            if span.hop != "token":
                products += num_late * (span.seconds - getattr(hops, span.hop))
                squares += num_late * num_late
    return replace(hops, wait=max(0.0, products / squares) if squares else 0.0)


_LOSSES = (
    *("alone", "decode_beside", "decode_crowded", "prefill_beside", "prefill_crowded"),
    "per_request",
)


def _terms(beside: Beside, cores: int) -> tuple[float, ...]:
    """Return what multiplies 1 and the losses, in their order, in ``HopCosts.stretch``."""
    others = (min(beside.num_busy, cores) - 1, max(0, beside.num_busy - cores))
    decode, prefill = ((0, 0), others) if beside.has_prompts else (others, (0, 0))
    return (1.0, *decode, *prefill, beside.requests_per_s)


def level(run: LiveRun, pass_time: PassTime, hops: HopCosts) -> float:
    """Return the time that all recorded passes took over the time predicted for them.

    A pass that ran beside others, or while requests came, is predicted to share the host.
    """
    passes = list(shared_passes(run, pass_time))
    if not passes:
        return 1.0
    predicted = sum(each.predicted * hops.stretch(each.beside) for each in passes)
    return sum(each.took for each in passes) / predicted
