"""The clusters of ``headway bench burst``: started, watched, stopped, one after the other."""

from __future__ import annotations

import asyncio
import os
from argparse import Namespace
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from bench.cluster.burst_plan import CONTENDERS, BurstLoad, filling, scaling_params
from bench.cluster.burst_report import Run, print_runs, write_runs
from bench.serve.client import Client, Endpoint
from bench.serve.replay import Replay
from headway.cost.profile import Profile
from headway.errors import HeadwayError
from services.local import up
from services.local.store import LocalStore, free_port
from services.local.supervisor import ProcessSpec, Supervisor
from services.local.worker_scaler import WorkerScaler
from services.runtime import wire
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig
from services.runtime.store import Store

_START_PATIENCE = 300.0
_TIMEOUT = 300.0  # seconds, for one answer
_MOST_OPEN = 1024
_LOOK_INTERVAL = 0.25
_BLOCK_SIZE = 16
_WIDTH = 160


@dataclass
class _Cluster:
    url: str
    config: ServiceConfig
    supervisor: Supervisor
    scaler: WorkerScaler | None
    workers: list[tuple[float, dict[str, int]]] = field(default_factory=list)

    def look(self) -> dict[str, int]:
        """Workers now, by role those that serve, and those that start or drain."""
        draining = [] if self.scaler is None else self.scaler.draining
        found: Counter[str] = Counter()
        for process in self.supervisor.processes:
            if process.spec.service != "worker" or process.spec.membership:
                continue
            is_ready = bool(process.address) and process not in draining
            state = "draining" if process in draining else "starting"
            found[process.spec.role if is_ready else state] += 1
        return dict(found)


async def compare(args: Namespace, names: Sequence[str], profile: Profile) -> int:
    """Every policy's run, then the table; 1 where a request failed."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)  # a column a policy
    load = _load(args, profile)
    runs: dict[str, Run] = {}
    for name in names:
        console.print(f"{name}: starting a cluster, logs in {args.log_dir}/{name}/")
        async with _cluster(args, name, profile, load) as cluster:
            console.print(f"{name}: {load.seconds:g} s of requests")
            runs[name] = await _offer(cluster, load, Path(args.model).name)
        failed = [each for each in runs[name].outcomes if each.error_kind]
        if failed:
            said = f"{name}: {len(failed)} requests failed, the first: {failed[0].error}"
            console.print(said, markup=False)
        if args.json is not None:  # after each: what is measured is kept
            write_runs(args.json, args, load, runs)
    print_runs(console, load, runs, args.ttft_slo)
    if args.plots is not None:
        _plot(args.plots, load, runs)
    return 1 if any(each.error_kind for run in runs.values() for each in run.outcomes) else 0


def _load(args: Namespace, profile: Profile) -> BurstLoad:
    """As asked for; a length that was not is one that fills an instance."""
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


def _plot(folder: Path, load: BurstLoad, runs: Mapping[str, Run]) -> None:
    from bench.plots import burst

    series = {name: run.series() for name, run in runs.items()}
    burst(
        folder,
        {name: each.ttft for name, each in series.items()},
        {name: each.workers for name, each in series.items()},
        (load.before, load.burst_ends_at),
    )


async def _offer(cluster: _Cluster, load: BurstLoad, model: str) -> Run:
    """The load, while somebody counts the workers."""
    client = Client(Endpoint.parse(cluster.url), _TIMEOUT)
    plan = load.plan(model)
    try:
        await client.post(plan.path, plan.requests[0].body, lambda data, now: None)
        replay = Replay(client, plan, most_open=_MOST_OPEN)
        watching = asyncio.create_task(_watch(cluster))
        await replay.run(asyncio.Event())
        await asyncio.sleep(max(0.0, load.seconds - cluster.workers[-1][0]))
        watching.cancel()
        page = await client.get("/metrics")
        num_resubmitted = _metric(bytes(page.body).decode(), "headway_gateway_resubmitted_requests")
    finally:
        client.close()
    return Run(list(replay.outcomes), cluster.workers, num_resubmitted, await _decisions(cluster))


async def _watch(cluster: _Cluster) -> None:
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    while True:
        cluster.workers.append((loop.time() - started_at, cluster.look()))
        await asyncio.sleep(_LOOK_INTERVAL)


def _metric(text: str, name: str) -> int:
    lines = (line for line in text.splitlines() if line.startswith(name))
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines))


async def _decisions(cluster: _Cluster) -> list[tuple[float, str]]:
    """When the autoscaler changed its mind, s since the epoch, and why."""
    if cluster.scaler is None:
        return []
    store = await Store.connect(cluster.config.store, cluster.config.cluster)
    try:
        (member,) = await store.members("autoscaler")
        async with open_channel(member.address, cluster.config) as channel:
            decisions = await wire.scaling_decisions(channel, within=5.0)
    except (HeadwayError, ValueError):
        return []
    finally:
        await store.close()
    found: list[tuple[float, str]] = []
    before: tuple[int, ...] = ()
    for each in decisions:
        said = each.targets
        wanted = (said.num_prefill, said.num_decode, said.num_convertible)
        if wanted != before:
            found.append((each.decided_at, said.reason))
        before = wanted
    return found


@asynccontextmanager
async def _cluster(
    args: Namespace, name: str, profile: Profile, load: BurstLoad
) -> AsyncIterator[_Cluster]:
    """One that serves; it ends with the context."""
    port = free_port(2)
    asked = _asked(args, name, scaling_params(name, profile, load, args.ttft_slo, args.utilisation))
    asked.port = port
    with LocalStore() as store:
        config = ServiceConfig(
            service_id="supervisor", store=store.url, cluster="burst", drain_timeout=30.0
        )
        specs = [_told(args, name, spec) for spec in up.process_specs(asked, _num_cores())]
        folder = Path(args.log_dir) / name
        supervisor = Supervisor(specs, config, folder, lambda line: None)
        scaler = up.make_scaler(asked, supervisor, config, lambda spec: _told(args, name, spec))
        try:
            async with asyncio.timeout(_START_PATIENCE):
                await supervisor.start()
                if scaler is not None:
                    await scaler.start()
                await supervisor.serving()
            yield _Cluster(f"http://127.0.0.1:{port}", config, supervisor, scaler)
        finally:
            if scaler is not None:
                await scaler.stop()
            await supervisor.stop()


def _asked(args: Namespace, name: str, params: Mapping[str, object]) -> Namespace:
    """What would be asked of ``headway up``."""
    policy = CONTENDERS[name]
    is_most = name == "fixed-most"
    num_prefill, num_decode = (args.max_prefill, args.max_decode) if is_most else (1, 1)
    flags = ["--model", args.model, "--device", args.device, "--preset", "tokenscale"]
    flags += ["--prefill", str(num_prefill), "--drain-timeout", "30"]
    if name == "tokenscale":
        flags += ["--decode", "0", "--convertible", "1"]
    else:
        flags += ["--decode", str(num_decode)]
    if policy != "fixed":
        flags += ["--autoscale", "--policy", f"scaling={policy}"]
        for name_, value in params.items():
            flags += ["--set", f"scaling.{name_}={value}"]
        flags += ["--max-prefill", str(args.max_prefill), "--max-decode", str(args.max_decode)]
        flags += ["--scale-down-delay", str(args.scale_down_delay)]
        flags += ["--standby", str(args.standby)]
    flags += ["--profile", args.profile]
    return up.parse([*flags])


def _told(args: Namespace, name: str, spec: ProcessSpec) -> ProcessSpec:
    """The same for every policy: TokenScale's routing by the profile, and bounded KV memory."""
    match spec.service:
        case "worker":
            return up.with_flags(spec, "--num-blocks", str(args.kv_tokens // _BLOCK_SIZE))
        case "autoscaler" if name == "tokenscale":
            return up.with_flags(spec, "--min-decode", "0")  # the convertible one decodes, too
        case _:
            return spec


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))
