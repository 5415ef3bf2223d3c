"""``headway simulate``: a scenario under one preset or several, side by side."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from math import inf
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from cli.options import add_json, add_policy_options, chosen, require_ranges
from headway.errors import invalid
from headway.life.trace import trace_of
from headway.presets import find_preset, parse_choice
from headway.sim.experiment import Run, cluster_spec, simulate
from headway.sim.planning import PLANNERS
from headway.sim.sampling import Sampler
from headway.sim.scenario import Scenario, load_scenario
from headway.sim.solo import SoloTime
from headway.sim.summary import KEPT_OF, METRICS, Digest, ManyValues, Summary, summarise
from headway.sim.views.run import require_views, simulate_views
from headway.sim.workload import Workload
from headway.workload.agents import SessionCounts
from headway.workload.sessions import written_for_aiperf
from results import plots
from results.by_class import number, print_by_class
from results.output import make_table, num_cores, refuse_unwritable, require_extra, write_json
from results.progress import counted
from results.recording import write_parquet, write_run

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
    ("lost", 100.0, "lost\n%"),
    ("gpu_seconds", 1 / 3600, "GPU\nh"),
)


_SHOWN_OF_SESSIONS: Sequence[Column] = (
    ("ttft_mean", 1e3, "TTFT\nmean ms"),
    ("ttlt_mean", 1.0, "TTLT\nmean s"),
    ("task_mean", 1.0, "task\nmean s"),
    ("task_p50", 1.0, "task\nP50 s"),
    ("task_p99", 1.0, "task\nP99 s"),
    ("num_tasks", 1.0, "tasks"),
    ("turns", 1.0, "turns\na task"),
    ("tasks_cut", 100.0, "cut\n%"),
    ("hit_share", 100.0, "hit\n%"),
)
"""Of a load of sessions."""


CORES, POLICIES = "cores", "policies"
_FIDELITY = "the real cores, or the policies over views: many times faster"


class SimulationJob(NamedTuple):
    """A run, for a process of its own; ``args``: the command's flags."""

    args: argparse.Namespace
    preset: str
    rate: float | None
    seed: int
    trace: Path | None = None

    def making(self) -> dict[str, object]:
        """Return what makes the run again, wherever that happens; paths are whole."""
        args, (policy, settings) = self.args, chosen(self.args)
        paths = {name: _whole(getattr(args, name)) for name in ("scenario", "profile", "hops")}
        own = {"preset": self.preset, "rate": self.rate, "seed": self.seed}
        choice = {"policy": policy, "set": settings}
        return {**paths, **own, **choice, "autoscales": args.autoscale, "planner": args.planner}

    @property
    def name(self) -> str:
        """The name of its files."""
        rate = "" if self.rate is None else f"-{self.rate:g}"
        return f"{self.preset}{rate}-{self.seed}"


def _scenario(args: argparse.Namespace) -> Scenario:
    return load_scenario(
        args.scenario,
        args.profile,
        hops=args.hops,
        autoscales=args.autoscale,
        planner=args.planner,
    )


def _whole(name: str) -> str:
    """Return a file's whole path; a name that is no file's as it is."""
    return str(Path(name).resolve()) if name and Path(name).is_file() else name


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
    add("--hops", default="", metavar="FILE", help="hop costs, instead of the scenario's own")
    add("--planner", choices=PLANNERS, default="", help="who plans every instance's passes")
    add("--autoscale", action="store_true", help="pools follow the load")
    add(
        "--rates",
        default="",
        help="a second by comma, of requests or sessions, instead of its own: a sweep",
    )
    add("--seeds", type=int, default=1, metavar="N", help="runs of each, means shown (1)")
    add("--processes", type=int, default=0, metavar="N", help="in parallel; 0: one a core")
    add("--out", type=Path, metavar="DIR", help="write every run's requests and decisions")
    add("--trace", type=Path, metavar="FILE", help="write the first run for Perfetto")
    add("--parquet", action="store_true", help="with --out: the requests as Parquet, too")
    add("--plots", type=Path, metavar="DIR", help="draw latencies, loads and a timeline")
    add("--fidelity", choices=(CORES, POLICIES), default=CORES, help=_FIDELITY)
    add(
        "--stream",
        action="store_true",
        help="count latencies in buckets: least memory",
    )
    add(
        "--console",
        type=int,
        nargs="?",
        const=0,
        metavar="PORT",
        help="show the run of the first preset in the browser, on this machine (any free port)",
    )
    add(
        "--write-sessions",
        type=Path,
        metavar="FILE",
        help="write the sessions of the first seed, for bench agents and AIPerf, and end",
    )
    add_json(parser, "write the table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate and print; HeadwayError for what cannot be simulated."""
    require_ranges(args, seeds=(1, 10_000), processes=(0, 1024))
    _check_output(args)
    scenario = _scenario(args)
    if args.write_sessions is not None:
        _write_sessions(args.write_sessions, scenario.workload)
        return 0
    if args.fidelity == POLICIES:
        scenario.workload.requests(1)  # refuses sessions in a closed loop
    choice, presets = chosen(args), args.preset.split(",")
    for name in presets:  # what is wrong is refused before any process starts
        spec = cluster_spec(find_preset(name), scenario.conditions.but(*parse_choice(*choice)))
        if args.fidelity == POLICIES:
            require_views(spec, scenario.failures)
    if args.console is not None:
        from cli import simulate_console  # slow to import: a server

        policy, settings = choice
        simulate_console.serve(
            *simulate_console.filmed(scenario, presets[0], policy, settings), args.console
        )
        return 0
    rates = _rates(args.rates, scenario.workload)
    jobs = [
        SimulationJob(args, preset, rate, seed)
        for rate in rates
        for preset in presets
        for seed in range(1, args.seeds + 1)
    ]
    if args.trace is not None:
        jobs[0] = jobs[0]._replace(trace=args.trace)
    runs = _run_all(jobs, args.processes or num_cores())
    table = _means(jobs, [each.row for each in runs])
    print_runs(table)
    if args.plots is not None:
        _plot(args.plots, jobs, runs, table)
    write_json(args.json, table)
    return 0


def _check_output(args: argparse.Namespace) -> None:
    if args.stream and (args.out is not None or args.plots is not None):
        raise invalid("--stream", True, "without --out and --plots: it keeps no request for them")
    if args.fidelity == POLICIES and (args.out is not None or args.plots is not None):
        limit = "cores with --out and --plots: their tables need every token and decision"
        raise invalid("--fidelity", POLICIES, limit)
    if args.trace is not None and (args.stream or args.fidelity == POLICIES):
        raise invalid("--trace", args.trace, "without --stream, and with the cores' fidelity")
    if args.console is not None and (args.fidelity == POLICIES or args.out or args.rates):
        raise invalid("--console", args.console, "without --fidelity policies, --out and --rates")
    if args.console is not None:
        require_ranges(args, console=(0, 65_535))
    if args.parquet and args.out is None:
        raise invalid("--parquet", True, "with --out DIR, where it writes")
    if args.parquet:
        require_extra("pyarrow", "--parquet")


def _write_sessions(file: Path, workload: Workload) -> None:
    """Write a scenario's sessions as rows of AIPerf's that hold all of them."""
    if workload.sessions is None:
        raise invalid("--write-sessions", str(file), "with a scenario of [workload.sessions]")
    refuse_unwritable(file)
    sessions = workload.sessions.sessions(1)
    file.write_text("".join(f"{row}\n" for row in written_for_aiperf(sessions)), encoding="utf-8")
    counts = SessionCounts.of(sessions)
    print(
        f"{file}: {counts.num_sessions} sessions, {counts.num_requests} requests, mean input "
        f"{counts.mean_input:.0f} tokens and output {counts.mean_output:.0f}; an endless cache "
        f"would hit {counts.shared:.0%}"
    )


def _rates(text: str, workload: Workload) -> Sequence[float | None]:
    if not text:
        return [None]
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        raise invalid("--rates", text, "numbers by comma, such as 10,20,40") from None
    for rate in rates:
        if not 0 <= rate < inf:
            raise invalid("--rates", rate, "finite numbers over 0, by comma")
        replace(workload, rate=rate)  # refuses 0 where no recorded rate stands for it
    return rates


def simulate_job(job: SimulationJob) -> Found:
    """Return one run's figures; its requests, decisions and plots go to files where asked for."""
    args, scenario = job.args, _scenario(job.args)
    workload = scenario.workload if job.rate is None else replace(scenario.workload, rate=job.rate)
    choice = parse_choice(*chosen(args))
    spec = cluster_spec(find_preset(job.preset), scenario.conditions.but(*choice))
    solo = SoloTime.on(scenario.conditions.instances)
    values, service_of = Digest if args.stream else ManyValues, workload.service_of
    if args.fidelity == POLICIES:
        summary = Summary(scenario.slo, workload.slo_of, values, service_of=service_of)
        requests = workload.requests(job.seed)
        return Found(summary.row(simulate_views(spec, requests, ended=summary.ended)), {})
    if not (args.out or args.plots or job.trace):  # nobody asks for single requests
        summary = Summary(scenario.slo, workload.slo_of, values, solo, service_of)
        load = workload.load(job.seed)
        run = simulate(spec, load, ended=summary.ended, failures=scenario.failures)
        return Found(summary.row(run), {})
    sampler = Sampler() if args.plots and job.seed == 1 else None
    run = simulate(
        spec,
        workload.load(job.seed),
        keeps_decisions=bool(args.out),
        keeps_lives=bool(args.out or job.trace),
        failures=scenario.failures,
        watch=None if sampler is None else sampler.watch,
    )
    if args.out:
        write_run(args.out / job.name, run, job.making())
        if args.parquet:
            write_parquet(args.out / job.name / "requests.parquet", run.records)
    if job.trace:
        from cli.trace import write_trace  # slow to import: a client of clusters

        write_trace(job.trace, trace_of(run.lives))
    if sampler is not None:
        plots.kv_loads(args.plots, job.name, sampler.samples)
        plots.timeline(args.plots, job.name, sampler.passes)
    times = _times(run) if args.plots else {}
    return Found(summarise(run, scenario.slo, workload.slo_of, solo, service_of), times)


def _times(run: Run) -> dict[str, list[float]]:
    return {
        metric: [v for record in run.records if (v := getattr(record, metric)) is not None]
        for metric in METRICS
    }


def _plot(
    folder: Path,
    jobs: Sequence[SimulationJob],
    results: Sequence[Found],
    table: Sequence[Mapping[str, object]],
) -> None:
    runs = {
        j.name: f.values for j, f in zip(jobs, results, strict=True) if j.seed == 1 and f.values
    }
    if runs:
        plots.latency_cdfs(folder, runs)
    if len({row["rate"] for row in table}) > 1:
        for figure in ("ttft_p99", "ttlt_p99", "attainment"):
            plots.load_latency(folder, table, figure)


def _run_all(jobs: Sequence[SimulationJob], num_processes: int) -> list[Found]:
    names = [job.name for job in jobs]
    if num_processes <= 1 or len(jobs) == 1:
        return list(counted(map(simulate_job, jobs), "simulating", names))
    with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
        return list(counted(pool.map(simulate_job, jobs), "simulating", names))


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
            "seeds": len(seed_rows),
            **{
                name: statistics.fmean(row[name] for row in seed_rows if name in row)
                for name in seed_rows[0]
            },
        }
        for (rate, preset), seed_rows in grouped.items()
    ]


def print_runs(table: Sequence[Mapping[str, Any]]) -> None:
    """Print the latencies over all requests, losses if there are any, and the figures by class."""
    lose = any(row.get("lost") for row in table)
    columns = [column for column in _SHOWN if lose or column[0] != "lost"]
    titles = ("preset", "rate\n1/s", *(title for _, _, title in columns))
    printed = make_table(titles, _cells(table, columns), collapse_padding=True)
    for column in printed.columns:
        column.no_wrap = True
    console = Console()
    console.print(printed)
    unit = "requests/s"
    if any("num_tasks" in row for row in table):
        unit = "sessions/s"
        titles = ("preset", "rate\n1/s", *(title for _, _, title in _SHOWN_OF_SESSIONS))
        console.print(make_table(titles, _cells(table, _SHOWN_OF_SESSIONS), collapse_padding=True))
    _print_promises(console, table)
    for rate in dict.fromkeys(row["rate"] for row in table):
        title = "" if rate is None else f"{rate:g} {unit}"
        print_by_class(console, title, {r["preset"]: r for r in table if r["rate"] == rate})


def _print_promises(console: Console, table: Sequence[Mapping[str, Any]]) -> None:
    """Print the share of each service class's requests whose promises were kept, if any has one."""
    names = sorted({name for row in table for name in row if name.startswith(KEPT_OF)})
    if names:
        columns = [(name, 100.0, f"{name.removeprefix(KEPT_OF)}\nkept %") for name in names]
        titles = ("preset", "rate\n1/s", *(title for _, _, title in columns))
        console.print(make_table(titles, _cells(table, columns)))


def _cells(
    table: Sequence[Mapping[str, Any]], columns: Sequence[Column]
) -> Iterator[Sequence[str]]:
    for row in table:
        rate = "-" if row["rate"] is None else f"{row['rate']:g}"
        yield (row["preset"], rate, *(number(row.get(name), scale) for name, scale, _ in columns))
