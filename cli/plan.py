"""``headway plan``: the cheapest instances that keep an SLO under a load."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from cli.options import add_json, require_ranges
from headway.errors import invalid
from headway.sim.sessions import SessionLoad
from headway.sim.spec import Autoscaling
from headway.sim.workload import Workload
from planning.plan.candidate import TOPOLOGIES, parse_goal
from planning.plan.confirm import Confirmed
from planning.plan.deploy import emit, refuse_all
from planning.plan.emit import EMITTERS
from planning.plan.load import Load, busiest, different_loads, num_requests
from planning.plan.make import by_gpus, make_plan
from planning.plan.report import CapacityPlan, nothing_keeps, rows, sentences
from planning.plan.search import keeping, search
from planning.plan.source import PlanSource, read_source
from planning.plan.space import Space, make_space
from planning.plan.trial import Trial
from results import plots
from results.output import make_table, refuse_unwritable, require_extra, write_json
from results.progress import ProgressBar, bar

_MOST_RATE = 1e6
_SOME_MODEL = "MODEL"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description = "Searches over views of the policies, and confirms on the real cores."
    add = parser.add_argument
    add(
        "--trace",
        required=True,
        metavar="FILE",
        help="a trace, sessions, or a scenario or its name",
    )
    add("--slo", default="", metavar="TEXT", help='"ttft=0.5,tpot=0.05,attainment=0.97", seconds')
    add("--profiles", default="", help="by comma, names or files; default: the scenario's own")
    add("--max-gpus", type=int, default=32, metavar="N", help="of all instances (32)")
    add("--presets", default="vllm-like,sbs,tokenscale", help="(vllm-like,sbs,tokenscale)")
    both = ",".join(TOPOLOGIES)
    add("--topologies", default=both, metavar="LIST", help=f"of {both} (both)")
    add(
        "--rate",
        type=float,
        default=0.0,
        metavar="R",
        help="requests (or sessions) a second, for its own",
    )
    add(
        "--requests",
        type=int,
        default=3000,
        metavar="N",
        help="of it; of a trace the busiest (3000)",
    )
    add("--seeds", type=int, default=3, metavar="N", help="runs of a finalist on the cores (3)")
    add("--autoscale", action="store_true", help="autoscaled fleets, too")
    add("--emit", choices=tuple(EMITTERS), help="print what to deploy, or write it to --out")
    add("--model", default=_SOME_MODEL, help="named in what is emitted: a hub id or a folder")
    add("--out", type=Path, metavar="FILE", help="of --emit")
    add("--plot", type=Path, metavar="FOLDER", help="draw the attainment over GPUs")
    add_json(parser, "write the plan")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan and print; 1 where nothing within ``--max-gpus`` keeps the goal."""
    _check_output(args)
    ranges = {"max_gpus": (1, 4096), "requests": (50, 10_000_000), "seeds": (1, 100)}
    require_ranges(args, **ranges, rate=(0, _MOST_RATE))
    source = read_source(args.trace, args.profiles)
    goal = parse_goal(args.slo, source.slo, source.slo_of)
    presets, topologies = args.presets.split(","), _topologies(args.topologies)
    space, notes = make_space(presets, source.profiles, topologies, source.network)
    _require_gpus(args.max_gpus, space)
    if args.emit is not None:
        refuse_all(args.emit, space, source.files)
    if args.autoscale:
        _require_scaling(space, source)
    workload = replace(source.workload, rate=args.rate) if args.rate else source.workload
    loads = different_loads(workload, args.seeds, args.requests)
    console = Console()
    _say(console, [*source.notes, *notes, *_once(loads, args.seeds), *_part(workload, args)])
    with bar("planning") as progress:
        trial = Trial(loads[0], goal, source.network)
        trial.tell = partial(_tell, progress, trial)
        plan = _plan(console, args, trial, space, loads)
    if plan is None:
        return 1
    write_json(args.json, _as_json(plan))
    if args.plot is not None:
        drawn = [p for p, kinds in space.topologies.items() if plan.fixed.candidate.kind in kinds]
        plots.attainment_over_gpus(
            args.plot, by_gpus(trial, plan.fixed.candidate, drawn), goal.attainment
        )
    if args.emit is not None:
        if args.model == _SOME_MODEL:
            _say(console, [f"{_SOME_MODEL} stands for your model: --model NAME writes its name"])
        _emit(args, plan.best, source)
    return 0


def _tell(progress: ProgressBar, trial: Trial, what: str) -> None:
    progress.tries(f"{what} ({trial.num_runs} clusters before)")
    if kept := keeping(trial):
        best = kept[0]
        progress.has_best(f"{best.candidate.name}, {best.attainment:.1%}")


def _check_output(args: argparse.Namespace) -> None:
    if args.plot is not None:
        require_extra("matplotlib", "--plot")
    if args.out is not None and args.emit is None:
        raise invalid("--out", str(args.out), "given with --emit, whose text it is for")
    for file in filter(None, (args.out, args.json)):
        refuse_unwritable(file)


def _topologies(text: str) -> Sequence[str]:
    given = text.split(",")
    for each in given:
        if each not in TOPOLOGIES:
            raise invalid("--topologies", each, f"one of {', '.join(TOPOLOGIES)}, or both by comma")
    return [each for each in TOPOLOGIES if each in given]


def _require_gpus(most: int, space: Space) -> None:
    """Refuse fewer GPUs than any fleet takes."""
    smallest = min(space.smallest(), key=lambda each: each.num_gpus)
    if most < smallest.num_gpus:
        limit = f"at least {smallest.num_gpus}, what the smallest fleet takes: {smallest.name}"
        raise invalid("--max-gpus", most, limit)


def _require_scaling(space: Space, source: PlanSource) -> None:
    """Refuse what a profile lacks for an autoscaler before any work."""
    for pair in space.smallest():
        scaling = pair.spec(source.network, Autoscaling()).scaling
        if pair.prefill and scaling is not None:
            scaling.make()


def _once(loads: Sequence[Load], num_seeds: int) -> Iterable[str]:
    if len(loads) == 1 < num_seeds:
        yield "every seed gives the same requests: each finalist runs once"


def _part(workload: Workload, args: argparse.Namespace) -> Iterable[str]:
    """Yield which part of a recording is planned for, where it is not all."""
    if workload.trace is not None:
        sentence = busiest(workload.requests(1), args.requests).sentence()
        yield from filter(None, (sentence,))


def _plan(
    console: Console,
    args: argparse.Namespace,
    trial: Trial,
    space: Space,
    loads: Sequence[Load],
) -> CapacityPlan | None:
    """Return the plan, printed; None where nothing keeps the goal."""
    outcomes = search(trial, space, args.max_gpus)
    _say_searched(console, trial)
    if not outcomes:
        closest = trial.closest()
        console.print(nothing_keeps(closest, trial.goal, args.max_gpus), soft_wrap=True)
        return None
    plan = make_plan(trial, outcomes, loads, args.max_gpus, autoscales=args.autoscale)
    if isinstance(plan, Confirmed):
        console.print(nothing_keeps(plan, trial.goal, args.max_gpus), soft_wrap=True)
        return None
    _print(console, plan)
    if args.autoscale and all(each.bounds is None for each in plan.confirmed):
        _say(console, ["none is autoscaled: that takes prefillers and decoders, and room to grow"])
    return plan


def _say_searched(console: Console, trial: Trial) -> None:
    """Say how much was tried, and how much of it on the cores."""
    text = f"searched {trial.num_runs} clusters, {num_requests(trial.load)} requests each"
    if isinstance(trial.load, SessionLoad):
        text += "; all on the cores, as views have no sessions"
    elif trial.num_by_cores:
        text += f"; {trial.num_by_cores} on the cores, as views do not have who yields memory"
    console.print(text, soft_wrap=True)


def _print(console: Console, plan: CapacityPlan) -> None:
    titles = ("instances", "GPUs", "attainment %", "by seed")
    console.print(make_table(titles, rows(plan)))
    _say(console, sentences(plan))


def _say(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(f"- {line}", highlight=False, soft_wrap=True, markup=False)


def _emit(args: argparse.Namespace, best: Confirmed, source: PlanSource) -> None:
    text = emit(args.emit, best.candidate, args.model, best.bounds, source.files)
    if args.out is None:
        print(f"\n{text}", end="")
    else:
        args.out.write_text(text, encoding="utf-8")


def _as_json(plan: CapacityPlan) -> dict[str, object]:
    return {
        "best": plan.best.name,
        "gpus": plan.best.num_gpus,
        "attainment": plan.best.attainment,
        "error": plan.best.error,
        "rate": plan.rate,
        "growth": plan.growth,
        "finalists": [
            {"name": c.name, "gpus": c.num_gpus, "by_seed": list(c.by_seed)} for c in plan.confirmed
        ],
    }
