"""Runs of a study: every system on the same requests, over seeds and loads."""

from __future__ import annotations

import json
import os
import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, islice
from types import MappingProxyType
from typing import NamedTuple

from headway.cluster import Role
from headway.presets import PRESETS, Preset, parse_choice
from headway.sim.autoscaling import autoscale
from headway.sim.cluster import ClusterSpec, SimCluster, SimRequest
from headway.sim.collection import SeldomCollected
from headway.sim.experiment import Conditions, cluster_spec
from headway.sim.kernel import Kernel
from headway.sim.records import Record
from headway.sim.solo import SoloTime
from headway.sim.summary import figures_by_class
from headway.sim.worker import SimWorker
from headway.workload.arrivals import gaps
from studies.claims import PerSeed, change, run_each
from studies.warm import require_warm

KEEP_VARIABLE = "HEADWAY_KEEP_RUNS"
PROFILE_VARIABLE = "HEADWAY_STUDY_PROFILE"
_CHOICES = ("HEADWAY_POLICY", "HEADWAY_SET", PROFILE_VARIABLE)
"""Variables that change a study's rows: what is kept under other ones is not theirs."""
Row = Mapping[str, float]
_LONGEST = 1e7


class Job(NamedTuple):
    """A run to make; ``topology``: where a system may have several."""

    scenario: str
    system: str
    rate: float
    seed: int
    topology: str = ""


class Finished(NamedTuple):
    """A run that is over: its records by arrival, and the cluster as it ended."""

    records: Sequence[Record]
    cluster: SimCluster

    @property
    def by_class(self) -> dict[str, float]:
        """What users of each class felt, and preemptions a request."""
        row = figures_by_class(self.records, SoloTime.on(self.cluster.spec.instances))
        return {**row, "preemptions": self.cluster.num_preemptions / max(1, len(self.records))}


def spec_of(preset: Preset, conditions: Conditions) -> ClusterSpec:
    """Return a system's cluster; policies of the environment stand over those of every system."""
    choice = parse_choice(os.environ.get("HEADWAY_POLICY", ""), os.environ.get("HEADWAY_SET", ""))
    return cluster_spec(preset, conditions.but(*choice))


def run(
    spec: ClusterSpec,
    requests: Iterable[SimRequest],
    *,
    watch: Callable[[SimCluster], None] | None = None,
    is_start: bool = False,
) -> Finished:
    """Run until the last request has ended; ``watch`` may set up samplers before it begins.

    Instances follow the load where the spec scales them. HeadwayError for a run that is too short
    for its longest request (``studies.warm``), unless it ``is_start``: a run of what happens
    at a start, or of one crowd.
    """
    asked = list(requests)
    if not is_start:
        require_warm(spec, asked)
    kernel, records = Kernel(), list[Record]()
    cluster = SimCluster(kernel, spec, records.append)
    if spec.scaling is not None:
        autoscale(cluster)
    if watch is not None:
        watch(cluster)
    cluster.feed(iter(asked))
    with SeldomCollected():
        while cluster.is_busy and kernel.now < _LONGEST:
            kernel.run(kernel.now + 60.0)
    records.sort(key=lambda r: (r.arrival_at, r.request_id))
    return Finished(records, cluster)


def arrivals(rng: random.Random, rate: float, num_requests: int) -> Iterator[tuple[int, float]]:
    """Return numbers and instants of a Poisson process, drawn one by one."""
    return islice(enumerate(accumulate(gaps("poisson", rate, rng))), num_requests)


def with_policies(
    base: str, *, params: Mapping[str, Row | Mapping[str, object]], **names: str
) -> Preset:
    """Return a preset with other policies and their parameters, by question."""
    preset = PRESETS[base]
    merged = {**preset.params, **{q: MappingProxyType(dict(p)) for q, p in params.items()}}
    return replace(preset, params=MappingProxyType(merged), **names)


class KeptRows:
    """Rows of a study's runs, and a file of JSON lines that keeps them, so that it may go on.

    The file knows the policies, parameters and profile that were chosen, and nothing of the code:
    rows of older code are to be removed by hand. A last line that was cut off is left out.
    """

    def __init__(self, path: str, study: str) -> None:
        self._path = path
        chosen = [f"{name}={value}" for name in _CHOICES if (value := os.environ.get(name))]
        self._study = " ".join((study, *chosen))
        self.rows: dict[Job, Row] = {}
        if path and os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                for line in file:
                    self._read(line)

    def _read(self, line: str) -> None:
        try:
            study, job, row = json.loads(line)
        except ValueError:
            return
        if study == self._study:
            self.rows[Job(*job)] = row

    def add(self, job: Job, row: Row) -> None:
        """Take in a row, and write it where there is a file."""
        self.rows[job] = row
        if self._path:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write("\n" + json.dumps([self._study, job, row]))


@dataclass(frozen=True, slots=True)
class Results:
    """Rows of figures by job."""

    rows: Mapping[Job, Row]

    @classmethod
    def of(cls, measure: Callable[[Job], Row], jobs: Sequence[Job], num_processes: int) -> Results:
        """Measure every job that the file of kept rows, if one is given, does not have."""
        kept = KeptRows(os.environ.get(KEEP_VARIABLE, ""), measure.__module__)
        left = [job for job in jobs if job not in kept.rows]
        for job, row in zip(left, run_each(measure, left, num_processes), strict=True):
            kept.add(job, row)
        return cls({job: kept.rows[job] for job in jobs})

    def sample(self, scenario: str, system: str, rate: float, figure: str) -> PerSeed:
        """Return a figure over the seeds."""
        wanted = (scenario, system, rate)
        by_seed = sorted(
            (job.seed, row[figure]) for job, row in self.rows.items() if job[:3] == wanted
        )
        return PerSeed(tuple(value for _, value in by_seed))

    def pair(
        self, scenario: str, systems: tuple[str, str], rate: float, figure: str
    ) -> tuple[PerSeed, PerSeed]:
        """Return a figure of two systems."""
        before, after = (self.sample(scenario, system, rate, figure) for system in systems)
        return before, after

    def change(self, scenario: str, before: str, after: str, rate: float, figure: str) -> PerSeed:
        """Return the relative change from one system to another, seed by seed."""
        pair = self.pair(scenario, (before, after), rate, figure)
        return change(*(sample.values for sample in pair))

    def best(
        self, scenario: str, systems: Sequence[str], rate: float, figure: str, *, most: bool = False
    ) -> str:
        """Return the system with the least (or most) of a figure."""
        sign = -1 if most else 1
        return min(systems, key=lambda s: (sign * self.sample(scenario, s, rate, figure).mean, s))


def known(records: Iterable[Record], name: str) -> list[float]:
    """Return a metric of all records that have it."""
    return [value for record in records if (value := getattr(record, name)) is not None]


def share_of(values: Sequence[float], share: float) -> float:
    """Return a percentile; infinite where nothing was measured."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else float("inf")


class PassTimeSampler:
    """The time of a pass of every decode instance, in ms, at equal intervals."""

    def __init__(self, *, every: float, until: float) -> None:
        self._every = every
        self._until = until
        self._samples: list[tuple[float, ...]] = []

    def watch(self, cluster: SimCluster) -> None:
        """Sample this run."""
        at = self._every
        while at < self._until:
            cluster.kernel.at(at, partial(self._sample, cluster))
            at += self._every

    def _sample(self, cluster: SimCluster) -> None:
        workers = (w for w in cluster.workers if w.spec.role is Role.DECODE)
        self._samples.append(tuple(_pass_ms(worker) for worker in workers))

    def variance(self) -> float:
        """Return the variance over instances, in the mean of all instants; ms²."""
        return statistics.fmean(statistics.pvariance(times) for times in self._samples)


def _pass_ms(worker: SimWorker) -> float:
    """Return the time of a pass over what an instance holds now; units wait for the slowest."""
    seconds = worker.spec.profile.pass_time.seconds
    return 1e3 * max(seconds(0, 0, unit.num_running, unit.kv_tokens) for unit in worker.core.loads)
