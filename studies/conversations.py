"""Conversations: who finds a session's prompt where it was computed, and what that costs others.

Every system serves the same sessions. A turn follows the end of the one before, so a system that
answers late is asked less, and pays in the time of tasks. ``SYSTEMS`` has all rivals: a preset,
and the policies that are changed in it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from headway.metrics import Spread
from headway.presets import NO_PARAMS, Params, Preset, find_preset
from headway.sim.experiment import Run, simulate
from headway.sim.summary import task_figures
from studies.claims import Bar, Claim, PerSeed, unanimous
from studies.compared import Expected, judged
from studies.conversation_loads import AIPERF, LOADS, ConversationLoad
from studies.runs import Job, Results, Row, spec_of

PAPER = "conversations"
OURS, SBS = "sbs-warm", "sbs"
UNTIL = 3600.0
"""Virtual seconds after which a run that has not ended is given up."""


@dataclass(frozen=True, slots=True)
class ConversationSystem:
    """A contender: a preset, and policies and parameters over its own, by question."""

    name: str
    preset: str
    policies: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    params: Mapping[str, Params] = field(default_factory=lambda: NO_PARAMS)

    def made(self) -> Preset:
        """Return its policies."""
        return find_preset(self.preset).but(self.policies, self.params)


def _routed(name: str, dispatch: str = "", **params: object) -> ConversationSystem:
    """Return a router of the field before vLLM's defaults, with these parameters."""
    policies = MappingProxyType({"dispatch": dispatch or name})
    return ConversationSystem(name, "lmetric", policies, MappingProxyType({"dispatch": params}))


SYSTEMS: tuple[ConversationSystem, ...] = (
    ConversationSystem("vllm-like", "vllm-like"),
    ConversationSystem(SBS, "sbs", MappingProxyType({"dispatch": "sbs"})),
    ConversationSystem("lmetric", "lmetric"),
    _routed("session-hash", first="least-requests", spills=True),
    _routed("dynamo", prefill_load_scale=16.0),
    _routed("llm-d"),
    _routed("llm-d sticky", "llm-d", guide="sticky", most_delay=0.2),
    _routed("sglang", balance_abs=8),
    _routed("preble"),
    ConversationSystem(OURS, "sbs"),
)
"""Ours among its rivals, each in its best set-up: parameters that are not their projects' defaults
were the best of a sweep over these loads, one set for all of them.
"""
_BY_NAME: Mapping[str, ConversationSystem] = MappingProxyType({each.name: each for each in SYSTEMS})
RIVALS = tuple(each.name for each in SYSTEMS if each.name != OURS)

FIGURES: Mapping[str, str] = {
    "ttft_mean": "TTFT mean, s",
    "ttft_p50": "TTFT P50, s",
    "ttft_p99": "TTFT P99, s",
    "task_mean": "task mean, s",
}
"""What a user feels, and claims are about; a task has a time in a closed loop alone."""
SHARES: Mapping[str, str] = MappingProxyType({"hit_share": "hit %", "unended": "unended %"})


def measure(job: Job) -> Row:
    """Run a system once."""
    load = LOADS[job.scenario]
    spec = spec_of(_BY_NAME[job.system].made(), load.conditions())
    run = simulate(spec, load.make(job.seed), until=UNTIL, failures=load.failures)
    return _row(run, _num_asked(load, job.seed))


def _num_asked(load: ConversationLoad, seed: int) -> int:
    made = load.make(seed)
    return len(made) if isinstance(made, list) else made.num_requests


def _row(run: Run, num_asked: int) -> Row:
    ended = [record for record in run.records if record.finished and record.ttft is not None]
    ttft = Spread.of([record.ttft or 0.0 for record in ended])
    cold = Spread.of([r.ttft or 0.0 for r in ended if r.request_id.startswith("cold-")])
    whole = [record.ttlt for record in ended if record.ttlt is not None]
    return {
        **({} if ttft is None else {f"ttft_{n}": getattr(ttft, n) for n in ("mean", "p50", "p99")}),
        **({} if cold is None else {"cold_p99": cold.p99}),
        **({"ttlt_mean": statistics.fmean(whole)} if whole else {}),
        **task_figures(run.tasks),
        "hit_share": run.hit_share,
        "num_requests": len(ended),
        "unended": 1 - len(ended) / num_asked,
    }


def loads() -> list[str]:
    """Return the names of the loads whose traces are there."""
    return [name for name, load in LOADS.items() if load.is_there]


def measure_all(seeds: Sequence[int], num_processes: int) -> Results:
    """Run every system under every load."""
    names = [system.name for system in SYSTEMS]
    jobs = [Job(load, name, 0.0, seed) for load in loads() for seed in seeds for name in names]
    return Results.of(measure, jobs, num_processes)


def reproduce(seeds: Sequence[int], num_processes: int) -> list[Claim]:
    """Compare ours with the best rival of each load."""
    return claims(measure_all(seeds, num_processes))


# --- the table ------------------------------------------------------------------------

TITLES = ("load", "system", "seed", *FIGURES.values(), *SHARES.values())


def table(results: Results) -> Iterator[tuple[str, ...]]:
    """Yield rows of cells: a load and a system, by seed and in the mean."""
    for name in dict.fromkeys(job.scenario for job in results.rows):
        for system in SYSTEMS:
            rows = {j.seed: r for j, r in results.rows.items() if j[:2] == (name, system.name)}
            if len(rows) > 1:
                for seed, row in sorted(rows.items()):
                    yield name, system.name, str(seed), *_cells([row])
            yield name, system.name, "mean", *_cells([*rows.values()])


def _cells(rows: Sequence[Row]) -> Iterator[str]:
    for figure in (*FIGURES, *SHARES):
        values = [row[figure] for row in rows if figure in row]
        factor = 100.0 if figure in SHARES else 1.0
        yield f"{factor * statistics.fmean(values):.3g}" if values else "-"


# --- the claims -----------------------------------------------------------------------

_AS_GOOD = Bar(0.03)
_NO_LATER = Bar(0.0)
_HALF = 0.5
_AIPERF_P99 = 0.43


def claims(results: Results) -> list[Claim]:
    """Return the ratios to the best rival, load by load, and what is asked of all loads."""
    names = list(dict.fromkeys(job.scenario for job in results.rows))
    rows = [row for name in names for row in _against_the_best(results, name)]
    rows += _cold_ones(results, names)
    rows += _at_aiperfs_rate(results, names)
    return [*rows, *_wins(results, names)]


def _against_the_best(results: Results, name: str) -> Iterator[Claim]:
    for figure, title in FIGURES.items():
        if not _has(results, name, figure):
            continue
        best = results.best(name, RIVALS, 0.0, figure)
        pair = results.pair(name, (best, OURS), 0.0, figure)
        where = LOADS[name].title if name in LOADS else ""
        yield judged(PAPER, f"{name}: {title}", where, Expected("-", _AS_GOOD), pair, best)


def _has(results: Results, name: str, figure: str) -> bool:
    """Return whether every system has a figure under a load."""
    return all(figure in row for job, row in results.rows.items() if job.scenario == name)


def _cold_ones(results: Results, names: Sequence[str]) -> Iterator[Claim]:
    """Compare the P99 of cold prompts with SBS's, which does not know who holds what."""
    for name in names:
        if _has(results, name, "cold_p99"):
            pair = results.pair(name, (SBS, OURS), 0.0, "cold_p99")
            claim, expected = f"{name}: TTFT P99 of cold prompts", Expected("-", _NO_LATER)
            yield judged(PAPER, claim, "s", expected, pair, SBS)


def _at_aiperfs_rate(results: Results, names: Sequence[str]) -> Iterator[Claim]:
    if AIPERF in names:
        ours = results.sample(AIPERF, OURS, 0.0, "ttft_p99")
        limit = PerSeed((_AIPERF_P99,) * len(ours.values))
        where, expected = LOADS[AIPERF].title, Expected("-", _NO_LATER)
        yield judged(PAPER, f"{AIPERF}: TTFT P99, s", where, expected, (limit, ours), "the bar")


def _wins(results: Results, names: Sequence[str]) -> Iterator[Claim]:
    """Count the loads whose mean TTFT is less than every rival's; at least half are asked.

    A count has no noise of its own: the verdict is every seed's, and open where they differ.
    """
    ratio = partial(_ratio, results)
    shares = [sum(ratio(name, seed) < 1 for name in names) / len(names) for seed in _seeds(results)]
    title, where = "loads with a mean TTFT under every rival's", f"{len(names)} loads; share"
    before, after = PerSeed((_HALF,) * len(shares)), PerSeed((*shares,))
    holds = unanimous([share >= _HALF for share in shares])
    asked = f"at least {_HALF:.0%} in every seed"
    yield Claim(PAPER, title, where, "-", before, after, holds, against="half", asked=asked)


def _ratio(results: Results, name: str, seed: int) -> float:
    rivals = [results.rows[Job(name, rival, 0.0, seed)]["ttft_mean"] for rival in RIVALS]
    return results.rows[Job(name, OURS, 0.0, seed)]["ttft_mean"] / min(rivals)


def _seeds(results: Results) -> list[int]:
    return sorted({job.seed for job in results.rows})
