"""``headway simulate``: a scenario under one preset or several, side by side."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import track

from bench import plots
from bench.by_class import number, print_by_class
from bench.output import make_table, num_cores, require_extra, write_json
from bench.recording import write_parquet, write_run
from cli.options import add_json, add_policy_options, chosen, require_ranges
from headway.errors import invalid
from headway.presets import find_preset, parse_choice
from headway.sim.experiment import Run, cluster_spec, simulate
from headway.sim.sampling import Sampler
from headway.sim.scenario import load_scenario
from headway.sim.solo import SoloTime
from headway.sim.summary import METRICS, Digest, Summary, summarise

Column = tuple[str, float, str]
"""A figure, the factor to its unit, and its title."""
_SHOWN: Sequence[Column] = (
    ("ttft_p50", 1e3, "TTFT\nP50 ms"),
    ("ttft_p99", 1e3, "TTFT\nP99 ms"),
    ("ttfat_p99", 1e3, "TTFAT\nP99 ms"),
    ("tpot_p99", 1e3, "TPOT\nP99 ms"),
    ("ttlt_p50", 1.0, "TTLT\nP50 s"),
    ("ttlt_p99", 1.0, "TTLT\nP99 s"),
    ("attainment", 100.0, "SLO\n%"),
    ("gpu_seconds", 1 / 3600, "GPU\nh"),
)


class SimulationJob(NamedTuple):
    """A run, for a process of its own; ``out`` and ``plots`` are folders or empty."""

    scenario: str
    preset: str
    rate: float | None
    seed: int
    out: str = ""
    plots: str = ""
    streams: bool = False
    parquet: bool = False
    profile: str = ""
    policy: str = ""
    set: str = ""

    @property
    def name(self) -> str:
        """The name of its files."""
        rate = "" if self.rate is None else f"-{self.rate:g}"
        return f"{self.preset}{rate}-{self.seed}"


class Found(NamedTuple):
    """A run's figures, and its times by metric where plots need them."""

    row: Mapping[str, float]
    values: Mapping[str, Sequence[float]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    add = parser.add_argument
    add("scenario", help="a TOML file, or the name of a ready-made one (docs/simulator.md)")
    add("--preset", default="vllm-like,sbs", help="by comma, side by side (vllm-like,sbs)")
    add_policy_options(parser)
    add("--profile", default="", metavar="FILE", help="every instance's, instead of its own")
    add("--rates", default="", help="requests/s by comma, instead of the scenario's own: a sweep")
    add("--seeds", type=int, default=1, metavar="N", help="runs of each, means shown (1)")
    add("--processes", type=int, default=0, metavar="N", help="in parallel; 0: one a core")
    add("--out", type=Path, metavar="DIR", help="write every run's requests and decisions")
    add("--parquet", action="store_true", help="with --out: the requests as Parquet, too")
    add("--plots", type=Path, metavar="DIR", help="draw latencies, loads and a timeline")
    add("--stream", action="store_true", help="keep no request: for runs of any length")
    add_json(parser, "write the table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate and print; HeadwayError for what cannot be simulated."""
    require_ranges(args, seeds=(1, 10_000), processes=(0, 1024))
    _check_output(args)
    scenario = load_scenario(args.scenario, args.profile)
    choice, presets = chosen(args), args.preset.split(",")
    for name in presets:  # what is wrong is refused before any process starts
        cluster_spec(find_preset(name), scenario.conditions.but(*parse_choice(*choice)))
    jobs = [
        SimulationJob(
            args.scenario,
            preset,
            rate,
            seed,
            out=str(args.out or ""),
            plots=str(args.plots or ""),
            streams=args.stream,
            parquet=args.parquet,
            profile=args.profile,
            policy=choice.policy,
            set=choice.set,
        )
        for rate in _rates(args.rates)
        for preset in presets
        for seed in range(1, args.seeds + 1)
    ]
    found = _run_all(jobs, args.processes or num_cores())
    table = _means(jobs, [each.row for each in found])
    print_runs(table)
    if args.plots is not None:
        _plot(args.plots, jobs, found, table)
    write_json(args.json, table)
    return 0


def _check_output(args: argparse.Namespace) -> None:
    """Refuse what cannot be written before anything runs."""
    if args.stream and (args.out is not None or args.plots is not None):
        raise invalid("--stream", True, "without --out and --plots: it keeps no request for them")
    if args.parquet and args.out is None:
        raise invalid("--parquet", True, "with --out DIR, where it writes")
    if args.parquet:
        require_extra("pyarrow", "--parquet")


def _rates(text: str) -> list[float | None]:
    try:
        return [float(part) for part in text.split(",")] if text else [None]
    except ValueError:
        raise invalid("--rates", text, "numbers by comma, such as 10,20,40") from None


def simulate_job(job: SimulationJob) -> Found:
    """Return one run's figures; its requests, decisions and plots go to files where asked for."""
    scenario = load_scenario(job.scenario, job.profile)
    workload = scenario.workload if job.rate is None else replace(scenario.workload, rate=job.rate)
    choice = parse_choice(job.policy, job.set)
    spec = cluster_spec(find_preset(job.preset), scenario.conditions.but(*choice))
    requests = workload.requests(job.seed)
    solo = SoloTime.on(scenario.conditions.instances)
    if job.streams:
        summary = Summary(scenario.slo, workload.slo_of, Digest, solo)
        run = simulate(spec, requests, ended=summary.ended, failures=scenario.failures)
        return Found(summary.row(run), {})
    sampler = Sampler() if job.plots and job.seed == 1 else None
    run = simulate(
        spec,
        requests,
        keeps_decisions=bool(job.out),
        failures=scenario.failures,
        watch=None if sampler is None else sampler.watch,
    )
    if job.out:
        _write(job, run)
    if sampler is not None:
        plots.kv_loads(Path(job.plots), job.name, sampler.samples)
        plots.timeline(Path(job.plots), job.name, sampler.passes)
    values = _times(run) if job.plots else {}
    return Found(summarise(run, scenario.slo, workload.slo_of, solo), values)


def _write(job: SimulationJob, run: Run) -> None:
    folder = Path(job.out) / job.name
    write_run(folder, run)
    if job.parquet:
        write_parquet(folder / "requests.parquet", run.records)


def _times(run: Run) -> dict[str, list[float]]:
    return {
        metric: [v for record in run.records if (v := getattr(record, metric)) is not None]
        for metric in METRICS
    }


def _plot(
    folder: Path,
    jobs: Sequence[SimulationJob],
    found: Sequence[Found],
    table: Sequence[Mapping[str, object]],
) -> None:
    """Draw all runs beside each other."""
    runs = {j.name: f.values for j, f in zip(jobs, found, strict=True) if j.seed == 1 and f.values}
    if runs:
        plots.latency_cdfs(folder, runs)
    if len({row["rate"] for row in table}) > 1:
        for figure in ("ttft_p99", "ttlt_p99", "attainment"):
            plots.load_latency(folder, table, figure)


def _run_all(jobs: Sequence[SimulationJob], num_processes: int) -> list[Found]:
    """Run all jobs in order, with a progress bar."""
    console = Console(stderr=True)
    if num_processes <= 1 or len(jobs) == 1:
        left = track(jobs, "simulating", console=console, transient=True)
        return [simulate_job(job) for job in left]
    with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
        results = pool.map(simulate_job, jobs)
        return list(track(results, "simulating", len(jobs), console=console, transient=True))


def _means(
    jobs: Sequence[SimulationJob], rows: Sequence[Mapping[str, float]]
) -> list[dict[str, object]]:
    """Return a row for each rate and preset: means over the seeds."""
    grouped: dict[tuple[float | None, str], list[Mapping[str, float]]] = {}
    for job, row in zip(jobs, rows, strict=True):
        grouped.setdefault((job.rate, job.preset), []).append(row)
    return [
        {
            "preset": preset,
            "rate": rate,
            "seeds": len(found),
            **{
                name: statistics.fmean(row[name] for row in found if name in row)
                for name in found[0]
            },
        }
        for (rate, preset), found in grouped.items()
    ]


def print_runs(table: Sequence[Mapping[str, Any]]) -> None:
    """Print the latencies over all requests, then the figures by class."""
    titles = ("preset", "rate\n1/s", *(title for _, _, title in _SHOWN))
    printed = make_table(titles, _cells(table), collapse_padding=True)
    for column in printed.columns:
        column.no_wrap = True
    console = Console()
    console.print(printed)
    for rate in dict.fromkeys(row["rate"] for row in table):
        title = "" if rate is None else f"{rate:g} requests/s"
        print_by_class(console, title, {r["preset"]: r for r in table if r["rate"] == rate})


def _cells(table: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    for row in table:
        rate = "-" if row["rate"] is None else f"{row['rate']:g}"
        yield (row["preset"], rate, *(number(row.get(name), scale) for name, scale, _ in _SHOWN))
