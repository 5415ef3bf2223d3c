"""Finalists on the real cores: several seeds, and how sure their attainment is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headway.cluster import Role
from headway.sim.experiment import simulate
from headway.sim.network import NetworkParams
from headway.sim.spec import Autoscaling
from planning.plan.candidate import Goal, Sizing
from planning.plan.load import Load, in_order, num_requests
from results.interval import LEAST_RUNS, student

NUM_PARTS = 10
"""Parts of a run, by arrival: requests that come together fare alike, parts hardly do."""
_Z = 1.96


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A finalist on the cores: shares of requests that kept the limits, and mean GPUs in use.

    ``error``: half the 95 % interval of ``attainment``, from the spread of the runs' parts, at
    least Wilson's. ``bounds``: of an autoscaled fleet, which begins as the candidate; None for a
    fixed one.
    """

    candidate: Sizing
    attainment: float
    error: float
    by_seed: Sequence[float]
    mean_gpus: float
    bounds: Autoscaling | None = None

    @property
    def num_gpus(self) -> float:
        """GPUs that are paid: of an autoscaled fleet the mean, start-ups included."""
        return self.candidate.num_gpus if self.bounds is None else self.mean_gpus

    @property
    def name(self) -> str:
        """Its name; of an autoscaled fleet with its bounds: ``1-2P+1-5D``."""
        if self.bounds is None:
            return self.candidate.name
        scaled, own = self.bounds, self.candidate
        pools = [f"{scaled.min_prefill}-{scaled.max_prefill}P"]
        pools += [f"{scaled.min_decode}-{scaled.max_decode}D"]
        return f"{'+'.join(pools)}{own.name.removeprefix(own.topology)}"


def confirm(
    candidate: Sizing,
    loads: Sequence[Load],
    goal: Goal,
    network: NetworkParams,
    autoscaling: Autoscaling | None = None,
) -> Confirmed:
    """Run a candidate on the cores, once for each load (a seed's requests); all differ."""
    spec = candidate.spec(network, autoscaling)
    by_seed: list[float] = []
    parts: list[float] = []
    used: list[float] = []
    for load in loads:
        run = simulate(spec, load)
        flags = [r is not None and not goal.missed(r) for r in in_order(load, run.records)]
        size = max(1, math.ceil(len(flags) / NUM_PARTS))
        parts += [statistics.fmean(flags[n : n + size]) for n in range(0, len(flags), size)]
        by_seed.append(statistics.fmean(flags))
        used.append(run.gpu_seconds / max(run.ended_at, 1e-9))
    kept_share = statistics.fmean(by_seed)
    error = max(_spread(parts), _least_error(kept_share, sum(map(num_requests, loads))))
    return Confirmed(candidate, kept_share, error, by_seed, statistics.fmean(used), autoscaling)


def _spread(parts: Sequence[float]) -> float:
    """Return half the 95 % interval of the mean of parts (Student's t); at most 1."""
    if len(parts) < LEAST_RUNS:
        return 1.0
    return min(1.0, student(len(parts)) * statistics.stdev(parts) / math.sqrt(len(parts)))


def _least_error(share: float, number: int) -> float:
    """Return how far Wilson's 95 % interval reaches if each request fares for itself.

    So nothing is certain where all requests fared alike, and no part differs from another.
    """
    weight = _Z**2 / number
    middle = (share + weight / 2) / (1 + weight)
    half = _Z * math.sqrt(share * (1 - share) / number + weight / (4 * number)) / (1 + weight)
    return max(share - (middle - half), middle + half - share)


def autoscaled(
    fixed: Sequence[Confirmed],
    most_gpus: int,
    confirmed: Callable[[Sizing, Autoscaling], Confirmed],
) -> list[Confirmed]:
    """Run fixed fleets under an autoscaler: with their instances at most, or one more of each.

    An autoscaler needs prefillers and decoders, and has none of the others.
    """
    runs = []
    for candidate in dict.fromkeys(each.candidate for each in fixed):
        if candidate.counts.keys() != {Role.PREFILL, Role.DECODE}:
            continue
        for more in (0, 1):
            most = candidate.but(prefill=candidate.prefill + more, decode=candidate.decode + more)
            if most.num_gpus <= most_gpus:
                bounds = Autoscaling(max_prefill=most.prefill, max_decode=most.decode)
                runs.append(confirmed(candidate, bounds))
    return runs


def choose(
    finalists: Sequence[Sizing],
    most_gpus: int,
    confirmed: Callable[[Sizing], Confirmed],
    goal: Goal,
) -> tuple[Confirmed | None, list[Confirmed]]:
    """Return the cheapest that keeps the goal on the cores, and all that were confirmed.

    If none of the finalists does, the best of them gets one instance more at a time.
    """
    done = [confirmed(candidate) for candidate in finalists]
    while not (kept := [each for each in done if each.attainment >= goal.attainment]):
        best = max(done, key=lambda each: each.attainment)
        counts = {role.value: count for role, count in best.candidate.counts.items()}
        more = [best.candidate.but(**{kind: n + 1}) for kind, n in counts.items()]
        more = [c for c in more if c.num_gpus <= most_gpus and c not in [d.candidate for d in done]]
        if not more or len(done) > 3 * len(finalists) + 4:
            return None, done
        done += [confirmed(candidate) for candidate in more]
    return min(kept, key=lambda c: (c.candidate.num_gpus, -c.attainment)), done
