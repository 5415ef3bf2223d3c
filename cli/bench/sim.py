"""``headway bench sim``: how fast the simulator is, and how much memory it takes."""

from __future__ import annotations

import argparse
import math
import random
import resource
import time
from collections.abc import Iterator
from itertools import chain

from cli.options import add_json, require_ranges
from headway.cluster import Role
from headway.core.worker import core
from headway.cost.profile import load_profile
from headway.errors import Code, HeadwayError
from headway.presets import find_preset
from headway.sim.cluster import ClusterSpec, SimRequest
from headway.sim.experiment import UNLIMITED, Conditions, cluster_spec, simulate
from headway.sim.network import NetworkParams
from headway.sim.records import Record
from headway.sim.views.run import simulate_views
from headway.sim.worker import InstanceSpec
from headway.workload.arrivals import gaps
from results.output import write_json

_LOAD = (
    "fidelity",
    "preset",
    "profile",
    "prefill",
    "decode",
    "rate",
    "seconds",
    "prompt",
    "output",
    "seed",
)
"""The options that say what was simulated: figures are told with them."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description = "Poisson arrivals, log-normal lengths, on one core."
    add = parser.add_argument
    add("--profile", default="llama-8b-a100", help="of all instances (llama-8b-a100)")
    add("--prefill", type=int, default=2, metavar="N", help="prefill instances (2)")
    add("--decode", type=int, default=6, metavar="N", help="decode instances (6)")
    add("--rate", type=float, default=20.0, metavar="R", help="requests/s (20)")
    add("--seconds", type=float, default=600.0, metavar="S", help="of arrivals (600)")
    add("--preset", default="sbs", help="policies (sbs)")
    add("--prompt", type=float, default=512.0, metavar="N", help="median prompt tokens (512)")
    add("--output", type=float, default=200.0, metavar="N", help="median output tokens (200)")
    add("--seed", type=int, default=0)
    add("--fidelity", choices=("cores", "policies"), default="cores", help="(cores)")
    add_json(parser, "write the figures")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate once and print; HeadwayError for what cannot be simulated."""
    counts, lengths = (1, 100_000), (1, 1e6)
    require_ranges(args, prefill=counts, decode=counts, prompt=lengths, output=lengths)
    require_ranges(args, rate=(1e-3, 1e6), seconds=(1e-3, 1e6))
    spec, requests = _spec(args), _some(args)
    num_ended = 0

    def ended(record: Record) -> None:
        nonlocal num_ended
        num_ended += 1

    began_at = time.process_time()
    simulated = simulate_views if args.fidelity == "policies" else simulate
    simulation = simulated(spec, requests, ended=ended)
    took = time.process_time() - began_at
    rows = {
        "simulated_seconds": simulation.ended_at,
        "seconds": took,
        "times_real_time": simulation.ended_at / took,
        "num_requests": num_ended,
        "num_passes": simulation.num_passes,
        "microseconds_per_request": 1e6 * took / num_ended,
        "microseconds_per_pass": 1e6 * took / simulation.num_passes,
        "most_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    # a compiled wheel has the cores as extension modules (docs/simulator.md, Compiled)
    cores = "plain" if core.__file__.endswith(".py") else "compiled"
    cores = "none" if args.fidelity == "policies" else cores
    print(f"{'load':<26} {_in_words(args)}\n{'cores':<26} {cores}")
    for name, value in rows.items():
        print(f"{name:<26} {value:,.1f}")
    load = {name: getattr(args, name) for name in _LOAD}
    write_json(args.json, {"load": load, "cores": cores, **rows})
    return 0


def _in_words(args: argparse.Namespace) -> str:
    instances = f"{args.prefill} prefill and {args.decode} decode instances of {args.profile}"
    asked = f"{args.rate:g} requests/s for {args.seconds:g} s, seed {args.seed}"
    lengths = f"medians of {args.prompt:g} and {args.output:g} tokens"
    return f"{args.preset}, {instances}; {asked}; {lengths}"


def _spec(args: argparse.Namespace) -> ClusterSpec:
    profile = load_profile(args.profile)
    instances = (
        (InstanceSpec(Role.PREFILL, profile), args.prefill),
        (InstanceSpec(Role.DECODE, profile), args.decode),
    )
    network = NetworkParams(bytes_per_s=profile.link_bytes_per_s)
    return cluster_spec(find_preset(args.preset), Conditions(instances, network, limits=UNLIMITED))


def _some(args: argparse.Namespace) -> Iterator[SimRequest]:
    requests = _requests(args)
    first = next(requests, None)
    if first is None:
        message = (
            f"nobody asks within {args.seconds:g} s at {args.rate:g} requests/s: give more "
            "--seconds or a higher --rate"
        )
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="--seconds")
    return chain([first], requests)


def _requests(args: argparse.Namespace) -> Iterator[SimRequest]:
    rng = random.Random(args.seed)

    def length(median: float, sigma: float, most: int) -> int:
        return max(1, min(most, round(rng.lognormvariate(math.log(median), sigma))))

    at = 0.0
    for number, gap in enumerate(gaps("poisson", args.rate, rng)):
        at += gap
        if at > args.seconds:
            return
        num_prompt, num_output = length(args.prompt, 0.8, 32_768), length(args.output, 0.8, 8192)
        yield SimRequest(f"r{number}", at, num_prompt, num_output)
