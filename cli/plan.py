"""``headway plan``: the cheapest instances that keep an SLO under a load."""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import islice
from pathlib import Path

from rich.console import Console

from bench import plots
from bench.output import make_table, refuse_unwritable, require_extra, write_json
from bench.plan.candidate import Sizing, parse_goal
from bench.plan.confirm import Confirmed
from bench.plan.emit import EMITTERS
from bench.plan.make import by_gpus, make_plan
from bench.plan.report import CapacityPlan, rows, sentences
from bench.plan.search import Trial, search
from cli.options import add_json, require_ranges
from headway.cost.profile import load_profile
from headway.cost.schema import Profile
from headway.errors import Code, HeadwayError, invalid
from headway.sim.clients import SimRequest
from headway.sim.network import NetworkParams
from headway.sim.scenario import load_scenario, scenario_names
from headway.sim.spec import Autoscaling
from headway.sim.views.run import require_views
from headway.sim.workload import SloLimits, Workload
from headway.workload.traces import load_trace


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description = "Searches over views of the policies, and confirms on the real cores."
    add = parser.add_argument
    add("--trace", required=True, metavar="FILE", help="a trace, a scenario's file or its name")
    add("--slo", default="", metavar="TEXT", help='"ttft=0.5,tpot=0.05,attainment=0.97", seconds')
    add("--profiles", default="", help="by comma, names or files; default: the scenario's own")
    add("--max-gpus", type=int, default=32, metavar="N", help="of all instances (32)")
    add("--presets", default="vllm-like,sbs,tokenscale", help="(vllm-like,sbs,tokenscale)")
    add("--rate", type=float, default=0.0, metavar="R", help="requests/s instead of the load's own")
    add("--requests", type=int, default=3000, metavar="N", help="of the load (its first 3000)")
    add("--seeds", type=int, default=3, metavar="N", help="runs of a finalist on the cores (3)")
    add("--autoscale", action="store_true", help="autoscaled fleets, too")
    add("--emit", choices=tuple(EMITTERS), help="print what to deploy, or write it to --out")
    add("--model", default="MODEL", help="named in what is emitted: a hub id or a folder")
    add("--out", type=Path, metavar="FILE", help="of --emit")
    add("--plot", type=Path, metavar="FOLDER", help="draw the attainment over GPUs")
    add_json(parser, "write the plan")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan and print; 1 where nothing within ``--max-gpus`` keeps the goal."""
    require_ranges(args, max_gpus=(1, 4096), requests=(50, 10_000_000), seeds=(1, 100))
    if args.plot is not None:
        require_extra("matplotlib", "--plot")
    if args.out is not None:
        refuse_unwritable(args.out)
    workload, slo, own, network = _load(args.trace)
    goal = parse_goal(args.slo, slo)
    profiles = [load_profile(name) for name in args.profiles.split(",")] if args.profiles else own
    if not profiles:
        message = f"a trace names no profile: give --profiles, of {'`headway profile list`'}"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="profiles")
    network = replace(network, bytes_per_s=min(each.link_bytes_per_s for each in profiles))
    if args.rate:
        workload = replace(workload, rate=args.rate)
    loads = [_requests(workload, seed, args.requests) for seed in range(1, args.seeds + 1)]
    trial = Trial(loads[0], goal, network)
    presets = args.presets.split(",")
    for name in presets:
        require_views(Sizing(name, profiles[0], profiles[0], unified=1).spec(network))
        pair = Sizing(name, profiles[0], profiles[0], prefill=1, decode=1)
        scaling = pair.spec(network, Autoscaling()).scaling if args.autoscale else None
        if scaling is not None:
            scaling.make()  # what a profile lacks for it is refused before any work
    console = Console()
    found = search(trial, presets, profiles, args.max_gpus)
    console.print(f"searched {trial.num_runs} clusters, {len(loads[0])} requests each")
    plan = (
        make_plan(trial, found, loads, args.max_gpus, autoscales=args.autoscale) if found else None
    )
    if plan is None:
        where = "on the cores" if found else "over views"
        console.print(f"nothing within {args.max_gpus} GPUs keeps the goal {where}")
        return 1
    _print(console, plan)
    if args.autoscale and all(each.bounds is None for each in plan.confirmed):
        console.print("- none is autoscaled: that takes prefillers and decoders, and room to grow")
    if args.plot is not None:
        plots.attainment_over_gpus(args.plot, by_gpus(trial, plan.fixed.candidate, presets), goal)
    if args.emit is not None:
        _emit(args, plan.best)
    write_json(args.json, _as_json(plan))
    return 0


def _load(name: str) -> tuple[Workload, SloLimits, list[Profile], NetworkParams]:
    """Return the workload of a scenario or a trace, and what else a scenario says."""
    if name in scenario_names() or name.endswith(".toml"):
        scenario = load_scenario(name)
        kinds = [kind.profile for kind, _ in scenario.conditions.instances]
        profiles = list({profile.name: profile for profile in kinds}.values())
        return scenario.workload, scenario.slo, profiles, scenario.conditions.network
    return Workload([], 0.0, trace=load_trace(Path(name))), SloLimits(), [], NetworkParams()


def _requests(workload: Workload, seed: int, most: int) -> list[SimRequest]:
    found = list(islice(workload.requests(seed), most))
    if len(found) < 2:
        raise invalid("the number of requests", len(found), "at least 2")
    return [replace(each, prefix_hashes=()) for each in found]


def _print(console: Console, plan: CapacityPlan) -> None:
    titles = ("instances", "GPUs", "attainment %", "by seed")
    console.print(make_table(titles, rows(plan)))
    for sentence in sentences(plan):
        console.print(f"- {sentence}", highlight=False, soft_wrap=True)


def _emit(args: argparse.Namespace, best: Confirmed) -> None:
    text = EMITTERS[args.emit](best.candidate, args.model, best.bounds)
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
