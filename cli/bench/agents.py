"""``headway bench agents``: sessions in a closed loop, on one endpoint or several systems."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench.agents.make import BLOCK, AgentLoad, make_sessions, scaled
from bench.agents.run import AgentsComparison, AgentsSetting, Serve
from bench.agents.systems import HASHED, WorkersSetting, endpoint, hashed, in_one_cluster
from bench.runner.comparison import compare
from cli.options import (
    add_json,
    add_model,
    add_policy_options,
    chosen,
    parse_seconds,
    parse_seeds,
    require_ranges,
)
from headway.errors import invalid, require_between
from headway.presets import find_preset
from headway.workload.session import first_of, started
from headway.workload.sessions import BLOCK_TOKENS, Session, load_sessions
from services.local.options import PolicyOptions


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description = (
        "Each turn of a session sends the whole conversation and a new text, waits for the end of "
        "the answer, pauses and asks again. Task time is a session's, from its first turn to the "
        "end of its last."
    )
    _add_target(parser)
    _add_sessions(parser)
    _add_requests(parser)
    add_json(parser, "write figures, sessions and turns")
    parser.set_defaults(run=run)


def _add_target(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what is asked").add_argument
    add("--url", default="http://127.0.0.1:8000", help="an endpoint that serves")
    add("--api-key", default="", help="default: $HEADWAY_API_KEY, else $OPENAI_API_KEY")
    add("--model-name", default="", help="default: the first that /v1/models names")
    add(
        "--compare",
        nargs="?",
        const=f"sbs,{HASHED}",
        metavar="NAMES",
        help="instead of --url, start systems here and ask one after the other: presets by comma, "
        f"and {HASHED}: as many clusters of one worker each behind a proxy that hashes sessions "
        f"(sbs,{HASHED})",
    )
    group = parser.add_argument_group("systems that are started (--compare)")
    add_model(group)
    add = group.add_argument
    add("--unified", type=int, default=3, metavar="N", help="workers of each system (3)")
    add("--device", default="cpu", help="cpu or cuda")
    add("--kv-tokens", type=int, default=0, metavar="N", help="a worker's KV memory (its own)")
    add("--least-pass-time", type=float, default=0.0, metavar="S", help="of every pass (0)")
    add("--kill-leader", type=float, metavar="AT", help="kill the scheduler's leader AT s after")
    add("--log-dir", type=Path, default=Path("run/agents"), help="logs (run/agents)")
    add_policy_options(parser)


def _add_sessions(parser: argparse.ArgumentParser) -> None:
    add, usual = parser.add_argument_group("sessions").add_argument, AgentLoad()
    add("--file", type=Path, metavar="FILE", help="sessions, one a line (docs/benchmarks.md)")
    add("--scale", type=float, default=1.0, metavar="X", help="lengths of the file's (1)")
    add("--sessions", type=int, metavar="N", help=f"how many ({usual.num_sessions}; file: all)")
    add("--rate", type=float, metavar="R", help="sessions/s; default: all at once, or the file's")
    add("--for", dest="seconds", type=parse_seconds, metavar="TIME", help="no turn begins after")
    add("--turns", type=int, default=usual.num_turns, metavar="N", help="of a session (6)")
    add(
        "--kinds",
        type=int,
        default=usual.kinds,
        metavar="N",
        help="system prompts (0: own ones)",
    )
    add("--system-tokens", type=int, default=usual.system, metavar="N", help="(300)")
    add("--output-tokens", type=int, default=usual.output, metavar="N", help="of an answer (60)")
    add("--pause", type=float, default=usual.pause, metavar="S", help="before a turn, mean (1)")
    add("--fork", type=float, default=usual.fork, metavar="P", help="children a turn (0)")
    add("--seeds", default="1", metavar="N", help="runs of each system (1), or seeds: 101,102")


def _add_requests(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("requests").add_argument
    yes_or_no = argparse.BooleanOptionalAction
    add("--session-ids", action=yes_or_no, default=True, help="send x-session-id")
    add("--thinking", action=yes_or_no, default=False, help="let the model reason")
    add("--ignore-eos", action=yes_or_no, default=True, help="answers of their full length")
    add("--timeout", type=float, default=120.0, metavar="S", help="for a whole answer (120)")
    add("--warmup", type=int, default=8, metavar="N", help="short requests before (8)")
    add("--salt", default="", help="of the texts; default: new in each run, so that none is warm")


def run(args: argparse.Namespace) -> int:
    """Run and print; 1 where a turn failed, 130 where it was stopped."""
    _refuse_wrong_numbers(args)
    setting = AgentsSetting(
        sessions=_sessions(args),
        block=BLOCK if args.file is None else max(1, round(BLOCK_TOKENS * args.scale)),
        model=args.model_name,
        api_key=args.api_key
        or os.environ.get("HEADWAY_API_KEY", "")
        or os.environ.get("OPENAI_API_KEY", ""),
        salt=args.salt,
        names=args.session_ids,
        thinks=args.thinking,
        ignores_eos=args.ignore_eos,
        seconds=float("inf") if args.seconds is None else args.seconds,
        timeout=args.timeout,
        num_warm_up=args.warmup,
        kill_at=args.kill_leader,
    )
    comparison = AgentsComparison(setting, _systems(args))
    return asyncio.run(compare(comparison, parse_seeds(args.seeds), args.json)).status


def _refuse_wrong_numbers(args: argparse.Namespace) -> None:
    require_ranges(args, turns=(1, 10_000), kinds=(0, 10_000), fork=(0, 1), pause=(0, 3600))
    for name in ("system_tokens", "output_tokens"):
        require_between(f"--{name.replace('_', '-')}", getattr(args, name), 1, 10_000_000)
    require_ranges(args, unified=(1, 64), warmup=(0, 1000), timeout=(0.1, 86_400))
    require_ranges(args, kv_tokens=(0, 10**9), least_pass_time=(0, 10), scale=(1e-6, 1000))
    if args.sessions is not None:
        require_between("--sessions", args.sessions, 1, 1_000_000)
    if args.rate is not None and not args.rate > 0.0:
        raise invalid("--rate", args.rate, "over 0 sessions/s (inf: all at once)")
    if args.kill_leader is not None:
        require_between("--kill-leader", args.kill_leader, 0, 86_400)
        if args.compare is None:
            limit = "left out with --url: give --compare, whose clusters have a standby"
            raise invalid("--kill-leader", args.kill_leader, limit)


def _sessions(args: argparse.Namespace) -> Callable[[int], Sequence[Session]]:
    read = None if args.file is None else scaled(_read(args), args.scale)
    load = AgentLoad(
        num_sessions=args.sessions or AgentLoad().num_sessions,
        num_turns=args.turns,
        kinds=args.kinds,
        system=args.system_tokens,
        output=args.output_tokens,
        pause=args.pause,
        fork=args.fork,
    )

    def of_seed(seed: int) -> Sequence[Session]:
        sessions = make_sessions(load, seed) if read is None else read
        return (
            sessions
            if args.rate is None
            else started(sessions, args.rate, random.Random(f"starts {seed}"))
        )

    return of_seed


def _read(args: argparse.Namespace) -> Sequence[Session]:
    """Return the file's sessions, or the first so many that start by themselves."""
    sessions = load_sessions(args.file)
    return sessions if args.sessions is None else first_of(sessions, args.sessions)


def _systems(args: argparse.Namespace) -> dict[str, Serve]:
    if args.compare is None:
        return {args.url: partial(endpoint, args.url)}
    names = [name for name in args.compare.split(",") if name]
    presets = [name for name in names if name != HASHED]
    for name in presets:
        find_preset(name)
    if not names or len(set(names)) < len(names):
        raise invalid("--compare", args.compare, f"different presets, or {HASHED}, by comma")
    setting = WorkersSetting(
        model=args.model,
        num_workers=args.unified,
        device=args.device,
        kv_tokens=args.kv_tokens,
        least_pass_time=args.least_pass_time,
        is_killed=args.kill_leader is not None,
    )
    # one worker has nothing to choose: the proxy's have the first preset
    behind = PolicyOptions((presets or ["sbs"])[0], *chosen(args))
    policies = {name: PolicyOptions(name, *chosen(args)) for name in presets}
    return {
        name: partial(in_one_cluster, setting, policies[name], args.log_dir / name)
        if name in policies
        else partial(hashed, setting, behind, args.log_dir / name)
        for name in names
    }
