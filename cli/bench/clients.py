"""``headway bench clients``: other people's clients against a cluster, case by case."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.clients.inside import FAILED
from bench.clients.page import RESULTS, drawn, merged, read_results, rewrite
from bench.clients.roster import CLIENTS, PeerClient
from bench.clients.run import CaseResult, ClientTarget, packed, python_of, run_client
from bench.runner.started import bench_options, started
from headway.errors import HeadwayError, invalid
from results.output import write_json
from services.local.options import PolicyOptions, WorkerCounts
from services.runtime.rooms import model_folder


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description = "Each client is installed into an environment of its own, once."
    add = parser.add_argument
    add("--client", action="append", metavar="NAME", help="this one alone; more than once")
    add("--environments", type=Path, default=Path("run/clients"), metavar="DIR", help="are kept")
    add("--vllm", type=Path, metavar="DIR", help="an environment that has vLLM already")
    add("--url", default="", help="a cluster that serves; default: one is started")
    add("--model", default="", help="folder of its model (headway-mini)")
    add("--page", type=Path, metavar="FILE", help="keep the results, and draw them into this page")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the clients and print the tables; 1 where a case failed."""
    chosen = _chosen(args.client or ())
    model = Path(model_folder(args.model)).resolve()
    results = asyncio.run(_run(args, chosen, model))
    table = packed(results)
    Console().print(drawn(table), markup=False, soft_wrap=True)
    if args.page is not None:
        table = merged(read_results() if RESULTS.exists() else {}, table)
        write_json(RESULTS, table)
        rewrite(args.page, table)
    return int(any(result.outcome == FAILED for result in results))


def _chosen(names: Sequence[str]) -> list[PeerClient]:
    known = [client.name for client in CLIENTS]
    for name in names:
        if name not in known:
            raise invalid("--client", name, f"one of {', '.join(known)}")
    return [client for client in CLIENTS if client.name in names or not names]


async def _run(
    args: argparse.Namespace, chosen: Sequence[PeerClient], model: Path
) -> list[CaseResult]:
    folder = str(model)
    if args.url:
        target = ClientTarget(args.url, model.name, folder)
        return await asyncio.to_thread(_run_all, args, chosen, target)
    options = bench_options(folder, PolicyOptions(), WorkerCounts(1, 1))
    async with started(options, args.environments / "cluster") as cluster:
        target = ClientTarget(cluster.url, model.name, folder)
        return await asyncio.to_thread(_run_all, args, chosen, target)


def _run_all(
    args: argparse.Namespace, chosen: Sequence[PeerClient], target: ClientTarget
) -> list[CaseResult]:
    """Run one client after the other; one that cannot be installed is a case that failed."""
    given = {"vllm bench serve": args.vllm} if args.vllm else {}
    results: list[CaseResult] = []
    for client in chosen:
        print(f"{client.name} …", flush=True)
        try:
            python = python_of(client, args.environments, given)
            results += run_client(client, python, target, args.environments)
        except HeadwayError as error:
            results.append(CaseResult(client.name, "", "installation", FAILED, error.message))
    return results
