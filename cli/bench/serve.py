"""``headway bench serve``: what users of any OpenAI endpoint feel under a given load."""

from __future__ import annotations

import argparse
from pathlib import Path

import uvloop

from bench.serve.measure import measure
from cli.options import add_json, require_ranges
from headway.errors import invalid


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description = (
        "Times are taken from the moment that a request leaves, connecting included."
    )
    _add_target(parser)
    _add_arrivals(parser)
    _add_prompts(parser)
    _add_report(parser)
    parser.set_defaults(run=run)


def _add_target(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8000", help="base URL, with or without /v1")
    add("--model", default="", help="default: the first that /v1/models names")
    add("--endpoint", default="", choices=("chat", "completions"), help="default: as prompts need")
    add("--api-key", default="", help="default: $HEADWAY_API_KEY, else $OPENAI_API_KEY")
    add("--timeout", type=float, default=600.0, metavar="S", help="for a whole answer (600)")
    add("--warmup", type=int, default=1, metavar="N", help="requests before it counts (1)")


def _add_arrivals(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--rate", type=float, metavar="R", help="requests/s; with a trace its new mean; inf: all")
    add("--num-requests", type=int, metavar="N", help="default: 100, or the whole trace")
    add("--duration", type=float, metavar="S", help="no arrival after S seconds")
    kinds = ("poisson", "gamma", "constant", "trace")
    add("--arrivals", default="", choices=kinds, help="default: poisson, or the trace's")
    add("--burstiness", type=float, default=1.0, help="gamma's shape: 1 Poisson, less: burstier")
    add("--trace", type=Path, metavar="FILE", help="Azure .csv, Mooncake .jsonl, plain; also .gz")
    add("--speed", type=float, metavar="X", help="run the trace X times as fast")
    add("--spread", type=float, metavar="S", help="spread arrivals over S; default: clock's step")
    add("--seed", type=int, default=0, help="of arrivals and prompts (0)")


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--prompts",
        default="",
        help="mini (the small model's tasks, checked), random-tokens, trace, or a FILE with a "
        "prompt a line; default: the trace's own, else mini",
    )
    add("--prompt-tokens", type=int, default=128, metavar="N", help="of random-tokens (128)")
    add("--max-tokens", type=int, metavar="N", help="of an answer; default: the trace's, else open")
    add("--temperature", type=float, default=0.0, help="0: greedy (default)")
    add(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="random-tokens run to their full length",
    )


def _add_report(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    slo = "ttft=0.25,tpot=0.1"
    add("--slo", default=slo, help=f"limits in s on ttft, ttfat, tpot, tbt, ttlt ({slo})")
    add_json(parser, "write configuration, summary and every request")


def run(args: argparse.Namespace) -> int:
    """Measure and print; 1 where a request failed, 130 where it was stopped."""
    _refuse_wrong_numbers(args)
    return uvloop.run(measure(args))


def _refuse_wrong_numbers(args: argparse.Namespace) -> None:
    for name, least in (("timeout", 0.0), ("prompt_tokens", 0), ("burstiness", 0.0)):
        if not getattr(args, name) > least:
            raise invalid(f"--{name.replace('_', '-')}", getattr(args, name), f"over {least:g}")
    if args.max_tokens is not None and args.max_tokens < 1:
        raise invalid("--max-tokens", args.max_tokens, "at least 1")
    require_ranges(args, warmup=(0, 100), temperature=(0, 2))
