"""The clusters of ``headway bench burst``: offered a burst one after the other, and watched."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bench.burst.plan import CONTENDERS, BurstLoad, filling, scaling_params
from bench.runner.comparison import LiveComparison, Measurement
from bench.runner.offered import num_resubmitted, replayed
from bench.runner.started import LiveTarget, cluster_target
from bench.runner.verdict import Figure, spread
from bench.serve.replay import ReplayedRequest
from bench.serve.report import record
from headway.cost.profile import Profile
from headway.errors import HeadwayError
from results import plots
from services.local.cluster import LocalCluster
from services.local.options import Autoscale, ClusterOptions, PolicyOptions, WorkerCounts
from services.local.refusals import refuse_wrong_options
from services.local.store import free_port
from services.runtime import wire
from services.runtime.channel import open_channel
from services.runtime.identity.roles import ServiceRole
from services.runtime.store import Store

SEED = 0
_TTFT_SLO = 0.25  # seconds
_LOOK_INTERVAL = 0.25
_BLOCK_SIZE = 16
_SETTLED = 3.0  # seconds after the burst that its last requests may take to their first token
_NOT_CONFIG = ("run", "command", "bench", "json", "plots", "service_flags")

Workers = list[tuple[float, dict[str, int]]]
"""Workers by role or state, over seconds since the load began."""


class BurstComparison(LiveComparison):
    """The scaling policies, each over a cluster of its own."""

    width = 160
    figures = (
        Figure("ttft_p50", "TTFT P50, s", 0.1),
        Figure("ttft_p99", "TTFT P99, s", 0.1),
        Figure("burst_ttft_p50", "TTFT P50 in the burst, s", 0.1),
        Figure("burst_ttft_p99", "TTFT P99 in the burst, s", 0.1),
        Figure("peak_ttft", "TTFT at its peak (a second's median), s", 0.1),
        Figure("attainment", f"TTFT of {_TTFT_SLO:g} s or less, %", 1.0, more_is_better=True),
        Figure("tbt_p99", "time between tokens P99, s", 0.05),
        Figure("most_workers", "workers, most", 0.1),
        Figure("mean_workers", "workers, mean", 0.1),
        Figure("ordered", "workers ordered", 0.1),
        Figure("gone", "workers gone", 0.1),
        Figure("ready_after", "first one ready after, s", 1.0),
        Figure("num_requests", "requests", 1.0, more_is_better=True),
        Figure("num_failed", "failed", 1.0),
        Figure("resubmitted", "submitted again", 1.0),
    )

    def __init__(self, args: Namespace, names: Sequence[str], profile: Profile) -> None:
        super().__init__()
        self._args = args
        self._load = filling(profile)
        self._params = {
            name: scaling_params(name, profile, self._load, _TTFT_SLO) for name in names
        }
        self.systems = names
        for name in names:
            refuse_wrong_options(_options(args, name, self._params[name]), self._folder(name))

    def _folder(self, name: str) -> Path:
        return Path(self._args.log_dir) / name

    def serve(self, system: str) -> AbstractAsyncContextManager[LiveTarget]:
        """Start a policy's cluster."""
        self.console.print(f"{system}: starting a cluster, logs in {self._folder(system)}/")
        options = _options(self._args, system, self._params[system])
        return cluster_target(options, self._folder(system))

    async def measure(self, system: str, target: LiveTarget, regime: str, seed: int) -> Measurement:
        """Offer the load, and count the workers meanwhile."""
        load, cluster, workers = self._load, target.cluster, Workers()
        plan = load.plan(Path(self._args.model).name, seed)
        await replayed(target.url, replace(plan, requests=plan.requests[:1]))
        self.console.print(f"{system}: {load.seconds:g} s of requests")
        watching = asyncio.create_task(_watch(cluster, workers))
        requests = await replayed(target.url, plan)
        await asyncio.sleep(max(0.0, load.seconds - workers[-1][0]))
        watching.cancel()
        seen = figures_of(requests, workers, load)
        seen["resubmitted"] = await num_resubmitted(target.url)
        details = {
            "ttft_by_second": ttft_by_second(requests),
            "workers": workers,
            "decisions": await _decisions(cluster),
            "requests": [record(each) for each in requests],
        }
        return Measurement(seen, requests, details)

    def title(self, regime: str, runs: Mapping[int, Measurement]) -> str:
        """Return what is offered."""
        load = self._load
        return (
            f"{load.rate:g} → {load.burst_rate:g} requests/s for {load.burst:g} s, "
            f"{load.prompt_tokens} + {load.output_tokens} tokens each"
        )

    def packed(self) -> Mapping[str, Any]:
        """Return the configuration and the load."""
        config = {name: v for name, v in vars(self._args).items() if name not in _NOT_CONFIG}
        return {"config": config, "load": asdict(self._load)}

    def plot(self, folder: Path, runs: Mapping[str, Measurement]) -> None:
        """Draw TTFT and workers over time; ``runs`` by policy."""
        workers = {
            name: [(at, sum(counts.values())) for at, counts in each.details["workers"]]
            for name, each in runs.items()
        }
        ttft = {name: each.details["ttft_by_second"] for name, each in runs.items()}
        plots.burst(folder, ttft, workers, (self._load.before, self._load.burst_ends_at))


# --- figures --------------------------------------------------------------------------


def figures_of(
    requests: Sequence[ReplayedRequest], workers: Workers, load: BurstLoad
) -> dict[str, float]:
    """Return all figures; times of which there are none are left out."""
    sizes = [sum(counts.values()) for _, counts in workers]
    steps = [after - before for before, after in pairwise(sizes)]
    kept = sum(each.times is not None and each.times.ttft <= _TTFT_SLO for each in requests)
    ready_after = _first_ready(workers, load)
    return {
        **spread("ttft", _ttfts(requests, 0.0, load.seconds)),
        **spread("burst_ttft", _ttfts(requests, load.before, load.burst_ends_at + _SETTLED)),
        **spread("tbt", (gap for each in requests for gap in each.gaps)),
        "peak_ttft": max((value for _, value in ttft_by_second(requests)), default=0.0),
        "attainment": 100.0 * kept / max(1, len(requests)),
        "most_workers": float(max(sizes, default=0)),
        "mean_workers": fmean(sizes) if sizes else 0.0,
        "ordered": float(sum(max(step, 0) for step in steps)),
        "gone": float(sum(max(-step, 0) for step in steps)),
        **({} if ready_after is None else {"ready_after": ready_after}),
        "num_requests": float(len(requests)),
        "num_failed": float(sum(bool(each.error_kind) for each in requests)),
    }


def ttft_by_second(requests: Iterable[ReplayedRequest]) -> list[tuple[float, float]]:
    """Return the median TTFT (s) of each second's arrivals."""
    by_second: dict[int, list[float]] = {}
    for each in requests:
        if each.times is not None:
            by_second.setdefault(int(each.planned.arrival_at), []).append(each.times.ttft)
    return [(at + 0.5, median(values)) for at, values in sorted(by_second.items())]


def _ttfts(requests: Iterable[ReplayedRequest], begin: float, end: float) -> Iterable[float]:
    """Yield the TTFTs of those that arrived meanwhile."""
    return (
        each.times.ttft
        for each in requests
        if each.times is not None and begin <= each.planned.arrival_at <= end
    )


def _first_ready(workers: Workers, load: BurstLoad) -> float | None:
    """Return seconds from the burst's begin until more workers serve; None where none came."""
    serving = [
        (at, sum(n for state, n in counts.items() if state not in ("starting", "draining")))
        for at, counts in workers
    ]
    num_before = max((number for at, number in serving if at <= load.before), default=0)
    later = (at for at, number in serving if at > load.before and number > num_before)
    return next((at - load.before for at in later), None)


# --- the cluster ----------------------------------------------------------------------


async def _watch(cluster: LocalCluster, workers: Workers) -> None:
    """Count the workers now and then: by role those that serve, and those that start or drain."""
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    while True:
        draining = [] if cluster.scaler is None else cluster.scaler.draining
        counts: Counter[str] = Counter()
        for process in cluster.supervisor.processes:
            if process.spec.service != "worker" or process.spec.membership:
                continue
            is_ready = bool(process.address) and process not in draining
            state = "draining" if process in draining else "starting"
            counts[process.spec.role if is_ready else state] += 1
        workers.append((loop.time() - started_at, dict(counts)))
        await asyncio.sleep(_LOOK_INTERVAL)


async def _decisions(cluster: LocalCluster) -> list[tuple[float, str]]:
    """Return when the autoscaler changed its target, s since the epoch, and why."""
    if cluster.scaler is None:
        return []
    store = await Store.connect(cluster.config.store, cluster.config.cluster)
    try:
        (member,) = await store.members("autoscaler")
        async with open_channel(member.address, cluster.config, ServiceRole.AUTOSCALER) as channel:
            decisions = await wire.scaling_decisions(channel, within=5.0)
    except (HeadwayError, ValueError):
        return []
    finally:
        await store.close()
    changes: list[tuple[float, str]] = []
    before: tuple[int, ...] = ()
    for each in decisions:
        said = each.targets
        wanted = (said.num_prefill, said.num_decode, said.num_convertible)
        if wanted != before:
            changes.append((each.decided_at, said.reason))
        before = wanted
    return changes


def _options(args: Namespace, name: str, params: Mapping[str, object]) -> ClusterOptions:
    """Return the cluster of one contender; all route by the profile and have as much KV memory."""
    policy = CONTENDERS[name]
    is_most, is_ours = name == "fixed-most", name == "tokenscale"
    num_prefill, num_decode = (args.max_prefill, args.max_decode) if is_most else (1, 1)
    settings = ",".join(f"scaling.{param}={value}" for param, value in params.items())
    scales = policy != "fixed"
    flags: dict[str, tuple[str, ...]] = {
        "worker": ("--num-blocks", str(args.kv_tokens // _BLOCK_SIZE))
    }
    if is_ours:  # the convertible one decodes, too
        flags["autoscaler"] = ("--min-decode", "0")
    return ClusterOptions(
        model=args.model,
        policies=PolicyOptions(
            "tokenscale",
            f"scaling={policy}" if scales else "",
            settings if scales else "",
            args.profile,
        ),
        workers=WorkerCounts(num_prefill, 0 if is_ours else num_decode, int(is_ours)),
        autoscale=Autoscale(
            max_prefill=args.max_prefill,
            max_decode=args.max_decode,
            standby=args.standby,
            scale_down_delay=args.scale_down_delay,
        )
        if scales
        else None,
        device=args.device,
        port=free_port(2),
        service_flags=flags,
    )
