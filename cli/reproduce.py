"""``headway reproduce``: the papers' claims beside what the simulator finds."""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.table import Table

from cli.options import (
    POLICY_VARIABLE,
    SET_VARIABLE,
    add_json,
    add_policy_options,
    chosen,
    parse_seeds,
    require_ranges,
)
from headway.cost.profile import load_profile
from headway.errors import invalid
from headway.policies import registry
from headway.presets import parse_choice
from results.output import make_console, make_table, num_cores, write_json
from results.plots import provisioned
from studies import bursts, conversations, plots, tokenscale, topology
from studies.claims import Claim
from studies.runs import KEEP_VARIABLE, PROFILE_VARIABLE

_WIDTH = 180
PAPERS = ("sbs", "uniboost", "star", "pascal", "tokenscale")
OURS = ("composition", "dominance", "traces", "goodput", "topology", conversations.PAPER)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    add = parser.add_argument
    add("paper", choices=(*PAPERS, *OURS, "all"), help="whose claims")
    add("--seeds", default="3", metavar="N", help="runs of everything (3), or seeds: 101,102,103")
    add("--processes", type=int, default=0, metavar="N", help="in parallel; 0: one a core")
    add("--data", type=Path, metavar="DIR", help="recorded traces (shared/data)")
    add_json(parser, "write the rows")
    add("--keep", type=Path, metavar="FILE", help="of every run's row: a study goes on from there")
    add("--profile", default="", metavar="NAME|FILE", help="topology: the GPU (llama-8b-a100)")
    add("--plots", type=Path, metavar="DIR", help="draw each paper's claims")
    add_policy_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table; HeadwayError for numbers out of range."""
    require_ranges(args, processes=(0, 1024))
    seeds = parse_seeds(args.seeds)
    if args.profile:
        if args.paper != topology.PAPER:
            raise invalid("--profile", args.profile, f"for {topology.PAPER} alone")
        load_profile(args.profile)
    choice = chosen(args)
    for question, name in parse_choice(*choice).policies.items():
        registry.find(question, name)
    variables = {
        PROFILE_VARIABLE: args.profile,
        POLICY_VARIABLE: choice.policy,
        SET_VARIABLE: choice.set,
        KEEP_VARIABLE: str(args.keep or ""),
    }
    if args.data is not None:
        variables[bursts.DATA_VARIABLE] = str(args.data)
    num_processes = args.processes or num_cores()
    claims: list[Claim] = []
    with _environment(variables):  # the runs' processes read it
        for paper in PAPERS if args.paper == "all" else (args.paper,):
            if paper == conversations.PAPER:
                claims += _conversations(seeds, num_processes)
                continue
            study = importlib.import_module(f"studies.{paper}")
            claims += study.reproduce(seeds, num_processes)
        _print(claims)
        write_json(args.json, [claim.packed() for claim in claims])
        if args.plots is not None:
            _plot(args.plots, claims, num_processes)
    return 0


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these variables, and set what was there again at the end."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _plot(folder: Path, claims: Sequence[Claim], num_processes: int) -> None:
    papers = list(dict.fromkeys(claim.paper for claim in claims))
    for paper in papers:
        plots.claims(folder, paper, [claim for claim in claims if claim.paper == paper])
    if tokenscale.PAPER in papers:
        have = tokenscale.provisioned(1, num_processes)
        provisioned(folder, tokenscale.PAPER, have, bursts.needed(1))


def _conversations(seeds: Sequence[int], num_processes: int) -> list[Claim]:
    """Print the figures of every system and load, which say more than the claims."""
    results = conversations.measure_all(seeds, num_processes)
    table = make_table(
        conversations.TITLES, conversations.table(results), left=conversations.TITLES[:2]
    )
    make_console(_WIDTH).print(table)
    return conversations.claims(results)


def _print(claims: Sequence[Claim]) -> None:
    table = Table()
    for name in ("claim", "against", "paper", "baseline", "ours", "±", "asked", "holds", "note"):
        table.add_column(name, overflow="fold")
    for claim in claims:
        table.add_row(
            f"{claim.paper}: {claim.claim}; {claim.scenario}",
            claim.against,
            claim.paper_value,
            f"{claim.baseline:.3g}",
            f"{claim.ours:.3g}",
            f"{claim.spread:.2g}",
            claim.asked,
            claim.verdict,
            claim.note,
        )
    make_console(_WIDTH).print(table)
