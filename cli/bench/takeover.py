"""``headway bench takeover``: how long until a standby leads and serves, and what is lost."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import median

from bench.runner.comparison import LiveComparison, Measurement, compare
from bench.runner.leader import kill_leader, next_leader
from bench.runner.offered import looped, num_resubmitted
from bench.runner.started import LiveTarget, bench_options, cluster_target
from bench.runner.verdict import Figure
from bench.serve.client import Client, Endpoint
from bench.serve.plan import PATHS, Plan, Planned
from bench.serve.replay import ReplayedRequest, ask
from cli.options import add_json, add_model, require_ranges
from services.local.options import PolicyOptions, WorkerCounts
from services.runtime.store import Store

_PATIENCE = 120.0
_PROMPT = "Add 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22."
_MOST_ANSWERS = 100_000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description = (
        "Starts a cluster with a standby, keeps streams running, and kills the leader (SIGKILL) "
        "so many times."
    )
    add = parser.add_argument
    add_model(parser)
    add("--kills", type=int, default=5, metavar="N", help="of the leader (5)")
    add("--streams", type=int, default=8, metavar="N", help="requests in flight all the time (8)")
    add("--tokens", type=int, default=300, metavar="N", help="of each answer (300)")
    add("--log-dir", type=Path, default=Path("run/takeover"), help="logs (run/takeover)")
    add_json(parser, "write every kill's figures")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print; 1 where an answer was lost, cut or changed."""
    require_ranges(args, kills=(1, 1000), streams=(1, 1024), tokens=(8, 1024))
    return asyncio.run(compare(Takeovers(args), [0], args.json)).status


class Takeovers(LiveComparison):
    """Kills of a cluster's leader, the answers of so many streams compared all the time."""

    systems = ("headway up --schedulers 2",)
    figures = (
        Figure("elected_p50", "s from a kill until a standby leads, median", 0.1),
        Figure("elected_most", "… longest", 0.1),
        Figure("served_p50", "s until the first token of a request sent at the kill, median", 0.1),
        Figure("served_most", "… longest", 0.1),
        Figure("num_kills", "kills", 1.0),
        Figure("num_whole", "answers whole", 1.0, more_is_better=True),
        Figure("num_wrong", "answers lost, cut or changed", 1.0),
        Figure("num_resubmitted", "answers computed again", 1.0),
    )

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self._args = args
        body = {
            "model": Path(args.model).name,
            "prompt": _PROMPT,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            "max_tokens": args.tokens,
            "ignore_eos": True,
        }
        self._one = Planned(0, 0.0, json.dumps(body).encode(), "", None)

    def serve(self, system: str) -> AbstractAsyncContextManager[LiveTarget]:
        """Start a cluster with a standby."""
        options = bench_options(self._args.model, PolicyOptions(), WorkerCounts(), schedulers=2)
        return cluster_target(options, self._args.log_dir, _PATIENCE)

    async def prepare(self, system: str, target: LiveTarget, seed: int) -> None:
        """Ask once; every further answer has to be the same."""
        client = Client(Endpoint.parse(target.url), _PATIENCE)
        alone = ReplayedRequest(self._one, 0.0)
        stream = await ask(client, PATHS["completions"], alone, time.perf_counter())
        client.close()
        self._one = replace(self._one, answer=stream.answer)

    async def measure(self, system: str, target: LiveTarget, regime: str, seed: int) -> Measurement:
        """Kill the leader again and again under load."""
        supervisor, config = target.cluster.supervisor, target.cluster.config
        stopping, elected, at_kills = asyncio.Event(), list[float](), list[ReplayedRequest]()
        load = asyncio.create_task(self._asked(target, _MOST_ANSWERS, stopping))
        store = await Store.connect(config.store, config.cluster)
        try:
            for _ in range(self._args.kills):
                await supervisor.serving()  # the killed one stands by again
                await asyncio.sleep(1.0)
                leader = await kill_leader(supervisor, store)
                killed_at = time.monotonic()
                new = asyncio.create_task(self._asked(target, 1))
                await next_leader(store, above=leader.fencing_token)
                elected.append(time.monotonic() - killed_at)
                at_kills += await new
            num_again = await num_resubmitted(target.url)
        finally:
            stopping.set()
            await store.close()
            answers = await load
        served = [each.times.ttft for each in at_kills if each.times is not None]
        figures = {
            **{"elected_p50": median(elected), "elected_most": max(elected)},
            **({"served_p50": median(served), "served_most": max(served)} if served else {}),
            "num_kills": len(elected),
            "num_whole": sum(not each.error_kind for each in answers),
            "num_wrong": sum(bool(each.error_kind) for each in answers),
            "num_resubmitted": num_again,
        }
        kills = {"elected": elected, "served": served}
        return Measurement(figures, [*answers, *at_kills], {"kills": kills})

    async def _asked(
        self, target: LiveTarget, num_answers: int, stopping: asyncio.Event | None = None
    ) -> list[ReplayedRequest]:
        """Ask for one answer after the other; one that has changed counts as failed."""
        plan = Plan(PATHS["completions"], [self._one] * num_answers, ())
        in_flight = self._args.streams
        requests = await looped(target.url, plan, in_flight, inf, _PATIENCE, stopping)
        for each in requests:
            if not (each.error_kind or each.correct):
                each.error_kind, each.error = "changed", "another answer than without a kill"
        return requests
