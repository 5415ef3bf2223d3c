"""Loads on a live local cluster: what clients saw, what workers recorded, what moved."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.runner.offered import counted
from bench.serve.client import Client, Endpoint
from bench.serve.plan import Options, make_plan
from bench.serve.replay import Replay, ReplayedRequest
from headway.errors import Code, HeadwayError
from headway.workload.traces import TraceRow
from planning.profile.figures import Load, Seen
from planning.profile.loads import poisson
from services.local.options import ClusterOptions, PolicyOptions, WorkerCounts
from services.local.store import free_port
from services.worker.engines import MOVES_NO_KV

PASSES, SPANS = "passes", "spans"
_SEEN, _ASKED = "seen.json", "asked.json"
_PATIENCE = 300.0  # seconds, for one answer
_MOST_OPEN = 1024
_NUM_WARM = 5
_MOST_PROCESSES = 16


class LiveEngine(NamedTuple):
    """The engine of the workers: its name, and its options as JSON."""

    name: str = "torch"
    args: str = ""

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of a worker; none for Headway's own engine."""
        if self.name == TORCH.name:
            return ()
        return ("--engine", self.name, *(("--engine-args", self.args) if self.args else ()))

    def can_serve(self, topology: WorkerCounts) -> bool:
        """Return whether its workers can have these roles."""
        return self.name not in MOVES_NO_KV or not topology.prefill + topology.decode


TORCH = LiveEngine()


class LiveModel(NamedTuple):
    """A model, where it is computed, by which engine, and by how many threads of a worker."""

    model: str
    device: str = "cpu"
    engine: LiveEngine = TORCH
    num_threads: int = 1

    @property
    def where(self) -> str:
        """The device in words, for a profile."""
        if self.device != "cpu":
            return self.device
        return f"CPU, threads a worker: {self.num_threads}"


@dataclass(frozen=True, slots=True)
class Sent:
    """When a request left and its first token came back, s since the epoch."""

    sent_at: float
    first_token_at: float


@dataclass(frozen=True, slots=True)
class LiveLoad:
    """A load as its clients saw it, and how many requests moved meanwhile.

    ``began_at``: by the host's ``time.perf_counter``, like the instants of recorded passes.
    ``start_up``: seconds until the cluster served.
    """

    seen: Load
    sent: Sequence[Sent | None]
    num_moves: int
    began_at: float
    start_up: float = 0.0

    @property
    def epoch(self) -> float:
        """0 of that clock, seconds since the epoch; 0 if no request was answered."""
        for seen, sent in zip(self.seen, self.sent, strict=True):
            if seen is not None and sent is not None:
                return sent.sent_at - (self.began_at + seen.ended_at - seen.ttlt)
        return 0.0

    @property
    def came_at(self) -> list[float]:
        """When requests that were answered left their clients, in order, by the same clock."""
        seen = [each for each in self.seen if each is not None]
        return sorted(self.began_at + each.ended_at - each.ttlt for each in seen)


@dataclass(frozen=True, slots=True)
class LiveDeployment:
    """A live run's model, preset and workers.

    Each computes on as many threads, so that one profile holds for all of them.
    """

    served: LiveModel
    preset: str
    topology: WorkerCounts

    def options(self, folder: Path, *, spans: bool) -> ClusterOptions:
        """Return a cluster's options; its passes, and spans if wanted, are recorded in a folder."""
        first_port = free_port(2 + _MOST_PROCESSES)
        recorded = ("--record-spans", str(folder / SPANS)) if spans else ()
        threads = ("--num-threads", str(self.served.num_threads))
        passes = (*threads, "--record-passes", str(folder / PASSES))
        return ClusterOptions(
            model=self.served.model,
            policies=PolicyOptions(self.preset),
            workers=self.topology,
            device=self.served.device,
            port=first_port,
            metrics_port=first_port + 2,
            log_level="warning",
            drain_timeout=10.0,
            service_flags={
                "gateway": recorded,
                "scheduler": recorded,
                "worker": (*self.served.engine.flags, *passes, *recorded),
            },
        )


async def run_live(
    deployment: LiveDeployment, rows: Sequence[TraceRow], folder: Path, *, spans: bool = False
) -> LiveLoad:
    """Start a cluster, ask it the load, and stop it; records lie in the folder afterwards."""
    options = deployment.options(folder, spans=spans)
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    from services.local.cluster import LocalCluster  # slow to import: the store, gRPC
    from services.local.refusals import refuse_wrong_options

    refuse_wrong_options(options, logs)
    ordered_at = time.perf_counter()
    async with LocalCluster(options, logs) as cluster:
        start_up = time.perf_counter() - ordered_at
        scheduler = f"http://{options.host}:{options.metrics_port + 1}"
        ask = partial(_ask, cluster.url, options.served_name, folder / "requests.jsonl")
        await ask(poisson(4.0, _NUM_WARM, 0), 0)
        requests, began_at = await ask(rows, 1)
        moves = await counted(scheduler, "headway_scheduler_moves_total")
    return replace(_live_load(requests, began_at, int(moves)), start_up=start_up)


async def _ask(
    url: str, model: str, trace: Path, rows: Sequence[TraceRow], seed: int
) -> tuple[list[ReplayedRequest], float]:
    """Replay the requests; return them and when that began by ``time.perf_counter``.

    ``seed``: of the prompts' tokens. Another one for each load: else they would hit the cache.
    """
    write_trace(trace, rows)
    options = Options(
        model=model, trace=trace, prompts="random-tokens", endpoint="completions", seed=seed
    )
    plan = make_plan(options)
    client = Client(Endpoint.parse(url), _PATIENCE)
    replay = Replay(client, plan, most_open=_MOST_OPEN)
    try:
        await replay.run(asyncio.Event())
    finally:
        client.close()
    return replay.outcomes, replay.started_at


def _live_load(requests: Sequence[ReplayedRequest], began_at: float, num_moves: int) -> LiveLoad:
    start = began_at + time.time() - time.perf_counter()  # s since the epoch
    seen: list[Seen | None] = []
    sent: list[Sent | None] = []
    for each in requests:
        times = each.times
        if times is None:
            seen.append(None)
            sent.append(None)
            continue
        seen.append(Seen(times.ttft, times.tpot, times.ttlt, times.last_token_at))
        sent.append(Sent(start + times.arrival_at, start + times.first_token_at))
    return LiveLoad(seen, sent, num_moves, began_at)


def write_trace(path: Path, rows: Sequence[TraceRow]) -> None:
    """Write the requests as ``headway bench serve`` reads them."""
    names = ("arrival_at", "prompt_tokens", "output_tokens")
    lines = [json.dumps({name: asdict(row)[name] for name in names}) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def note_asked(deployment: LiveDeployment, rows: Sequence[TraceRow], folder: Path) -> None:
    """Write what a folder's run asks of which cluster; HeadwayError if it holds another run."""
    served, topology = deployment.served, deployment.topology
    asked = {
        "model": served.model,
        "device": served.device,
        "engine": list(served.engine),
        "threads": served.num_threads,
        "preset": deployment.preset,
        "workers": {r: n for r, n in topology.by_role().items() if n or r != "convertible"},
        "requests": [[round(r.arrival_at, 6), r.prompt_tokens, r.output_tokens] for r in rows],
    }
    path, text = folder / _ASKED, json.dumps(asked) + "\n"
    if (folder / _SEEN).is_file():
        kept_run = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        other = [name for name, value in asked.items() if kept_run.get(name) != value]
        if other:
            message = (
                f"{folder} has a run with other {', '.join(other)}: give --keep a folder of its "
                "own for these options, or take that run away"
            )
            raise HeadwayError(Code.FAILED_PRECONDITION, message, param="keep")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@contextmanager
def runs_folder(kept: Path | None) -> Iterator[Path]:
    """Yield a folder for runs: the one that is to be kept, or one for now."""
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with tempfile.TemporaryDirectory(prefix="headway-profile-") as folder:
        yield Path(folder)


def keep(load: LiveLoad, folder: Path) -> None:
    """Write a load beside its records: ``kept`` reads it back."""
    text = json.dumps(asdict(load))
    (folder / _SEEN).write_text(text + "\n", encoding="utf-8")


def kept(folder: Path) -> LiveLoad | None:
    """Return the load that was kept in a folder; None for none."""
    path = folder / _SEEN
    if not path.is_file():
        return None
    fields = json.loads(path.read_text("utf-8"))
    seen = [None if each is None else Seen(**each) for each in fields["seen"]]
    sent = [None if each is None else Sent(**each) for each in fields["sent"]]
    return LiveLoad(seen, sent, fields["num_moves"], fields["began_at"], fields["start_up"])
