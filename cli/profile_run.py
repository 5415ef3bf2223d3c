"""``headway profile run``: measure a deployment on this machine and write what it costs."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from cli.options import add_model
from headway.cost.velocity import TPOT_SLO
from headway.errors import invalid, require_over
from planning.profile.live import TORCH, LiveEngine, LiveModel, runs_folder
from planning.profile.matrix import learn
from planning.profile.model import with_chunk
from planning.profile.report import calibration_lines
from results.output import refuse_unwritable
from results.progress import bar
from services.worker.engines import find_engine

DESCRIPTION = """\
Measure what a deployment costs on this machine, and write its profile, what each hop of a request
costs (FILE.hops.toml) and the passes behind them (FILE.passes.json).

Starts local clusters. Requests that are alone show what every hop costs, a load spread over rates
and mixes what passes cost, and one on several workers what these take from each other. Velocities
follow from the pass times. Nothing else should run on the machine meanwhile. Other options of a
worker are given by the environment, as for `headway up`: HEADWAY_KV_CACHE_GIB=2.
"""
EPILOG = """\
Examples:

  headway profile run --out mini.toml
  headway profile run --model Qwen/Qwen2.5-0.5B-Instruct --device cuda --out qwen.toml
  headway up --autoscale --preset tokenscale --profile mini.toml
  headway simulate chat-and-reasoning --profile mini.toml --hops mini.hops.toml
  headway profile check --profile mini.toml --cases 'vllm-like/1P1D/*'
"""
_SHOW_NO_PASSES = ("openai",)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_deployment(parser)
    add = parser.add_argument
    add("--engine", default=TORCH.name, help="what computes: torch, vllm or vllm-native (torch)")
    add("--engine-args", default="", metavar="JSON", help="options of an engine other than torch")
    add("--out", type=Path, required=True, metavar="FILE.toml", help="profile; two more beside it")
    add(
        "--tpot-slo",
        type=float,
        default=TPOT_SLO,
        metavar="S",
        help=f"seconds a token, for the chunk of convertible decoders ({TPOT_SLO:g})",
    )
    add("--seed", type=int, default=0, help="of arrivals and lengths (0)")
    add("--keep", type=Path, metavar="DIR", help="keep the runs, and use those that are there")
    parser.set_defaults(run=run)


def add_deployment(parser: argparse.ArgumentParser) -> None:
    """Register what workers are started with."""
    add_model(parser)
    add = parser.add_argument
    add("--device", default="cpu", help="cpu or cuda (cpu)")
    add("--num-threads", type=int, default=1, metavar="N", help="a worker's, on a CPU (1)")


def run(args: argparse.Namespace) -> int:
    """Measure, fit and write; HeadwayError for what cannot be measured."""
    require_over("--tpot-slo", args.tpot_slo, 0)
    refuse_unwritable(args.out)
    if args.engine in _SHOW_NO_PASSES:
        limit = "an engine that shows its passes: torch, vllm or vllm-native"
        raise invalid("--engine", args.engine, limit)
    find_engine(args.engine)
    engine = LiveEngine(args.engine, args.engine_args)
    served = LiveModel(args.model, args.device, engine, args.num_threads)
    with runs_folder(args.keep) as folder, bar("measuring") as progress:
        learnt = learn(served, folder, args.seed, args.out.stem, progress.tries)
    profile = with_chunk(learnt.calibration.profile, args.tpot_slo)
    calibration = replace(learnt.calibration, profile=profile)
    calibration.save(args.out)
    print("\n".join(calibration_lines(calibration)))
    levels = ", ".join(f"{each:.2f}" for each in learnt.levels)
    print(f"passes of the loads, alone and side by side, took {levels} times what was fitted")
    if learnt.has_moved:
        print("the machine was not as fast for all loads: measure again when nothing else runs")
    return 0
