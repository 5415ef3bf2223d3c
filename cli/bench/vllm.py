"""``headway bench vllm``: a plain vLLM beside Headway, the same requests at the same instants."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path

from bench.demo.load import LEAST_REQUESTS, LoadBounds
from bench.runner.comparison import compare
from bench.vllm.compare import LOADS, ComparedLoad, VllmComparison
from bench.vllm.contenders import CONTENDERS, VllmSetting, refuse_unready
from bench.vllm.mix import read_mix
from bench.vllm.server import EngineLimits
from bench.vllm.virtual import ORDERS, CardShape, VirtualBench
from bench.vllm.virtual import compare as compare_virtually
from cli.options import add_json, add_model, parse_seconds, parse_seeds, require_ranges
from headway.cost.profile import load_profile
from headway.errors import invalid, require_between
from headway.policies import registry
from headway.presets import find_preset, parse_choice
from services.worker.engines import find_engine

_LONGEST = 16_384  # tokens of a request


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description = (
        "Runs in an environment that has vLLM (docs/engines.md). Starts all contenders, each with "
        "one engine, on this machine's CPU. A closed loop over the first measures what it carries; "
        "the others get the same load, one at a time, seed by seed. Contenders: "
        + "; ".join(f"{name}: {each.said}" for name, each in CONTENDERS.items())
    )
    add = parser.add_argument
    names = ",".join(CONTENDERS)
    add("--contenders", default=names, help=f"by comma ({names})")
    add("--regime", default="overload", help=f"by comma, of {', '.join(LOADS)} (overload)")
    add("--envoy", default="", metavar="FILE", help="Envoy's program, for the picker")
    add(
        "--for",
        dest="seconds",
        type=parse_seconds,
        default=12.0,
        metavar="TIME",
        help="the most time in which a regime's requests arrive (12s)",
    )
    add("--num-requests", type=int, default=300, metavar="N", help="the most of a regime (300)")
    add("--max-tokens", type=int, default=0, metavar="N", help="of a chat's output (0: any)")
    add("--warm-up", type=int, default=60, metavar="N", help="requests of the measuring loop (60)")
    add("--max-running", type=int, default=4, metavar="N", help="requests in one pass (4)")
    add("--threads", type=int, default=1, metavar="N", help="of an engine (1)")
    add("--preset", default="headway", help="of the clusters (headway)")
    add("--batching", default="", help="policy of the plug-in (its default)")
    _add_virtual(parser)
    add_model(parser)
    add("--log-dir", type=Path, default=Path("run/vllm"), help="logs by contender (run/vllm)")
    add_json(parser, "write offers and figures")
    parser.set_defaults(run=run)


def _add_virtual(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "on a virtual clock (--virtual)",
        "vLLM's real scheduler and the plug-in, with the step times of a profile: no server, no "
        "model. Orders: " + "; ".join(f"{name}: {said}" for name, said in ORDERS.items()),
    ).add_argument
    add("--virtual", action="store_true", help="compare orders on a virtual clock")
    add("--profile", default="llama-8b-h100", help="what a step costs (llama-8b-h100)")
    add("--places", type=int, default=128, metavar="N", help="requests that run at once (128)")
    add("--kv-tokens", type=int, default=60_800, metavar="N", help="tokens of KV (60800)")
    add("--chunk", type=int, default=2048, metavar="N", help="tokens of a step (2048)")
    add("--mix", type=Path, metavar="FILE", help="lengths of chats and reasoning (TOML)")
    add("--unread", type=float, default=0.0, metavar="SHARE", help="of clients, do not stream (0)")
    add("--long", default="0.3", metavar="SHARES", help="of requests, reason, by comma (0.3)")
    add("--loads", default="0.8,1.3", metavar="LOADS", help="x capacity, by comma (0.8,1.3)")
    add("--seeds", default="101,102,103,104,105", help="pairs (101,102,103,104,105)")
    add("--set", action="append", default=[], metavar="SETTING", help="batching.PARAMETER=VALUE")


def _run_virtual(args: argparse.Namespace) -> int:
    require_between("--for", args.seconds, 1, 86_400)
    require_between("--unread", args.unread, 0, 1)
    require_ranges(args, places=(1, 65_536), chunk=(1, 1 << 20), kv_tokens=(1024, 1 << 30))
    profile = load_profile(args.profile)
    limits = (args.places, args.kv_tokens, args.chunk, min(args.kv_tokens, _LONGEST))
    shape = CardShape(*limits, profile.block_size, profile.pass_time)
    mix = read_mix(args.mix, args.unread)
    params = parse_choice("", ",".join(args.set)).params.get("batching", {})
    registry.make("batching", args.batching or "headway", **params)  # or an error that says why
    bench = VirtualBench(shape, mix, args.model, args.seconds, args.batching, params)
    shares = _numbers("--long", args.long, 0.0, 1.0)
    loads = _numbers("--loads", args.loads, 0.01, 10.0)
    cells = [(share, load) for share in shares for load in loads]
    seeds = parse_seeds(args.seeds)
    find_engine("vllm")
    return compare_virtually(bench, list(ORDERS), cells, seeds, args.json)


def _numbers(name: str, text: str, least: float, most: float) -> Sequence[float]:
    """Return numbers by comma; HeadwayError for one that is none or out of bounds."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise invalid(name, text, "numbers by comma") from None
    for each in numbers:
        require_between(name, each, least, most)
    return numbers


def _names(name: str, text: str, known: Collection[str]) -> Sequence[str]:
    """Return names by comma; HeadwayError for one that is not known, or is there twice."""
    names = [each for each in text.split(",") if each]
    if not names or len(set(names)) < len(names) or not set(names) <= set(known):
        raise invalid(name, text, f"different ones of {', '.join(known)}, by comma")
    return names


def run(args: argparse.Namespace) -> int:
    """Run and print; 1 where a request failed."""
    if args.virtual:
        return _run_virtual(args)
    names = _names("--contenders", args.contenders, CONTENDERS)
    regimes = [LOADS[name] for name in _names("--regime", args.regime, LOADS)]
    seeds = parse_seeds(args.seeds)
    find_engine("vllm")
    find_preset(args.preset)
    if args.batching:
        registry.find("batching", args.batching)
    require_between("--for", args.seconds, 1, 600)
    require_ranges(args, num_requests=(LEAST_REQUESTS, 10_000), warm_up=(16, 1000))
    require_ranges(args, max_tokens=(0, 100_000), max_running=(1, 256), threads=(1, 256))
    refuse_unready(names, args.envoy)
    limits = EngineLimits(args.max_running, num_threads=args.threads)
    setting = VllmSetting(args.model, limits, args.preset, args.batching, args.log_dir, args.envoy)
    bounds = LoadBounds(args.seconds, args.num_requests)
    load = ComparedLoad(regimes, bounds, args.warm_up, args.max_tokens)
    comparison = VllmComparison(setting, names, load)
    return asyncio.run(compare(comparison, seeds, args.json)).status
