"""``headway bench vllm``: a plain vLLM beside Headway, the same requests at the same instants."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from bench.demo.load import LEAST_REQUESTS, REGIMES, LoadBounds
from bench.vllm.compare import ComparedLoad, compare
from bench.vllm.contenders import CONTENDERS, SAID, Comparison
from bench.vllm.server import EngineLimits
from cli.options import add_json, add_model, parse_seconds, require_ranges
from headway.errors import invalid, require_between
from headway.policies import registry
from headway.presets import find_preset
from services.worker.engines import find_engine


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description = (
        "Runs in an environment that has vLLM (docs/engines.md). Starts one contender after the "
        "other, each with one engine, on this machine's CPU. A closed loop over the first measures "
        "what it carries; all get the same load in proportion to that. Contenders: "
        + "; ".join(f"{name}: {said}" for name, said in SAID.items())
    )
    add = parser.add_argument
    names = ",".join(CONTENDERS)
    add("--contenders", default=names, help=f"by comma ({names})")
    add("--regime", choices=(*REGIMES, "both"), default="both", help="which load (both)")
    add("--seed", type=int, default=1, help="of the requests and their instants (1)")
    add(
        "--for",
        dest="seconds",
        type=parse_seconds,
        default=30.0,
        metavar="TIME",
        help="the most time in which a regime's requests arrive (30s)",
    )
    add("--num-requests", type=int, default=300, metavar="N", help="the most of a regime (300)")
    add("--max-tokens", type=int, default=0, metavar="N", help="of a chat's output (0: any)")
    add("--warm-up", type=int, default=60, metavar="N", help="requests of the measuring loop (60)")
    add("--max-running", type=int, default=4, metavar="N", help="requests in one pass (4)")
    add("--threads", type=int, default=1, metavar="N", help="of an engine (1)")
    add("--slowdown", type=float, default=5.0, metavar="X", help="attained within X x alone (5)")
    add("--preset", default="headway", help="of the clusters (headway)")
    add("--batching", default="uniboost", help="policy of the plug-in (uniboost)")
    add_model(parser)
    add("--log-dir", type=Path, default=Path("run/vllm"), help="logs by contender (run/vllm)")
    add_json(parser, "write offers and figures")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run and print; 1 where a request failed."""
    names = [name for name in args.contenders.split(",") if name]
    if not names or len(set(names)) < len(names) or not set(names) <= set(CONTENDERS):
        limit = f"different ones of {', '.join(CONTENDERS)}, by comma"
        raise invalid("--contenders", args.contenders, limit)
    find_engine("vllm")
    find_preset(args.preset)
    registry.find("batching", args.batching)
    require_between("--for", args.seconds, 1, 600)
    require_between("--slowdown", args.slowdown, 1, 1000)
    require_ranges(args, num_requests=(LEAST_REQUESTS, 10_000), warm_up=(16, 1000))
    require_ranges(args, max_tokens=(0, 100_000), max_running=(1, 256), threads=(1, 256))
    limits = EngineLimits(args.max_running, num_threads=args.threads)
    setting = Comparison(args.model, limits, args.preset, args.batching, args.log_dir)
    regimes = [each for name, each in REGIMES.items() if args.regime in (name, "both")]
    bounds = LoadBounds(args.seconds, args.num_requests)
    numbers = (args.seed, args.warm_up, args.slowdown, args.max_tokens)
    load = ComparedLoad(regimes, bounds, *numbers)
    return asyncio.run(compare(setting, names, load, args.json))
