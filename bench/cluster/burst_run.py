"""The clusters of ``headway bench burst``: started, watched, stopped, one after the other."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.cluster.burst_plan import CONTENDERS, BurstLoad, filling, scaling_params
from bench.cluster.burst_report import BurstRun, print_runs, write_runs
from bench.cluster.offered import num_resubmitted, print_failures, replayed
from headway.cost.profile import Profile
from headway.errors import HeadwayError
from results import plots
from results.output import make_console
from services.local.cluster import LocalCluster
from services.local.options import Autoscale, ClusterOptions, PolicyOptions, WorkerCounts
from services.local.refusals import refuse_wrong_options
from services.local.store import free_port
from services.runtime import wire
from services.runtime.channel import open_channel
from services.runtime.identity.roles import ServiceRole
from services.runtime.store import Store

_LOOK_INTERVAL = 0.25
_BLOCK_SIZE = 16
_WIDTH = 160


@dataclass
class _Watched:
    """A cluster and how many workers it had, by seconds since the load began."""

    cluster: LocalCluster
    workers: list[tuple[float, dict[str, int]]] = field(default_factory=list)

    def look(self) -> dict[str, int]:
        """Count the workers: by role those that serve, and those that start or drain."""
        scaler = self.cluster.scaler
        draining = [] if scaler is None else scaler.draining
        counts: Counter[str] = Counter()
        for process in self.cluster.supervisor.processes:
            if process.spec.service != "worker" or process.spec.membership:
                continue
            is_ready = bool(process.address) and process not in draining
            state = "draining" if process in draining else "starting"
            counts[process.spec.role if is_ready else state] += 1
        return dict(counts)


async def compare(args: Namespace, names: Sequence[str], profile: Profile) -> int:
    """Run every policy, print the table; return 1 where a request failed."""
    console = make_console(_WIDTH)
    load = _load(args, profile)
    runs: dict[str, BurstRun] = {}
    num_failed = 0
    options = {
        name: _options(
            args, name, scaling_params(name, profile, load, args.ttft_slo, args.utilisation)
        )
        for name in names
    }
    for name in names:
        refuse_wrong_options(options[name], Path(args.log_dir) / name)
    for name in names:
        console.print(f"{name}: starting a cluster, logs in {args.log_dir}/{name}/")
        async with LocalCluster(options[name], Path(args.log_dir) / name) as cluster:
            console.print(f"{name}: {load.seconds:g} s of requests")
            runs[name] = await _offer(_Watched(cluster), load, Path(args.model).name)
        num_failed += print_failures(console, name, runs[name].outcomes)
        if args.json is not None:  # after each: what is measured is kept
            write_runs(args.json, args, load, runs)
    print_runs(console, load, runs, args.ttft_slo)
    if args.plots is not None:
        _plot(args.plots, load, runs)
    return 1 if num_failed else 0


def _load(args: Namespace, profile: Profile) -> BurstLoad:
    """Return the load that was asked for; a length left out is one that fills an instance."""
    prompt_tokens, output_tokens = filling(profile, args.burst_rate, args.utilisation)
    return BurstLoad(
        args.rate,
        args.burst_rate,
        args.before,
        args.burst,
        args.after,
        args.prompt_tokens or prompt_tokens,
        args.output_tokens or output_tokens,
        args.seed,
    )


def _plot(folder: Path, load: BurstLoad, runs: Mapping[str, BurstRun]) -> None:
    series = {name: run.series() for name, run in runs.items()}
    plots.burst(
        folder,
        {name: each.ttft for name, each in series.items()},
        {name: each.workers for name, each in series.items()},
        (load.before, load.burst_ends_at),
    )


async def _offer(watched: _Watched, load: BurstLoad, model: str) -> BurstRun:
    """Offer the load, and count the workers meanwhile."""
    url, plan = watched.cluster.url, load.plan(model)
    await replayed(url, replace(plan, requests=plan.requests[:1]))
    watching = asyncio.create_task(_watch(watched))
    requests = await replayed(url, plan)
    await asyncio.sleep(max(0.0, load.seconds - watched.workers[-1][0]))
    watching.cancel()
    decisions = await _decisions(watched.cluster)
    return BurstRun(requests, watched.workers, await num_resubmitted(url), decisions)


async def _watch(watched: _Watched) -> None:
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    while True:
        watched.workers.append((loop.time() - started_at, watched.look()))
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
            "tokenscale", f"scaling={policy}", settings if scales else "", args.profile
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
