"""The contenders: who plans the passes of one vLLM, and what stands before it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from bench.vllm.server import BLOCK_SIZE, EngineLimits, Server, serving
from services.local.cluster import LocalCluster
from services.local.options import ClusterOptions, PolicyOptions, WorkerCounts
from services.local.store import free_port

_PRIORITY = ("--scheduling-policy", "priority")
_PLUG_IN = ("--scheduler-cls", "headway_vllm.HeadwayAsyncScheduler")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The settings of all contenders: model, limits, the clusters' preset, the plug-in's policy."""

    model: str
    limits: EngineLimits
    preset: str
    batching: str
    log_dir: Path

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
        return ClusterOptions(
            model=self.model,
            policies=PolicyOptions(self.preset),
            workers=WorkerCounts(0, 0, 0, 1),
            dtype=limits.dtype if computes else "auto",
            port=free_port(2),
            drain_timeout=5.0,
            service_flags={
                "worker": (
                    *("--engine", engine, "--engine-args", json.dumps(dict(engine_args))),
                    *(of_engine if computes else ()),
                    *("--chunk-tokens", str(limits.chunk_tokens)),
                    *("--num-threads", str(limits.num_threads)),
                )
            },
        )


Serve = Callable[[Comparison, Path], AbstractAsyncContextManager[str]]


@asynccontextmanager
async def _plain(setting: Comparison, folder: Path, *flags: str) -> AsyncIterator[str]:
    """vLLM alone, in one of its own orders."""
    async with serving(setting.server(*flags), folder, "vllm") as url:
        yield url


@asynccontextmanager
async def _plug_in(setting: Comparison, folder: Path) -> AsyncIterator[str]:
    """vLLM alone, in a policy's order."""
    named = {"batching": setting.batching} if setting.batching else {}
    environment = {"HEADWAY_VLLM": json.dumps(named)}
    server = setting.server(*_PLUG_IN, environment=environment)
    async with serving(server, folder, "vllm") as url:
        yield url


@asynccontextmanager
async def _behind(setting: Comparison, folder: Path, *flags: str) -> AsyncIterator[str]:
    """A cluster whose one worker is a plain vLLM with these flags."""
    async with (
        serving(setting.server(*flags), folder, "vllm") as endpoint,
        LocalCluster(setting.cluster("openai", {"url": endpoint}), folder / "cluster") as cluster,
    ):
        yield cluster.url


@asynccontextmanager
async def _inside(setting: Comparison, folder: Path, engine: str) -> AsyncIterator[str]:
    """A cluster whose one worker has vLLM in its process."""
    options = setting.cluster(engine, {"block_size": BLOCK_SIZE})
    async with LocalCluster(options, folder / "cluster") as cluster:
        yield cluster.url


CONTENDERS: Mapping[str, Serve] = MappingProxyType(
    {
        "fcfs": _plain,
        "plug-in": _plug_in,
        "behind": _behind,
        "behind-priority": lambda setting, folder: _behind(setting, folder, *_PRIORITY),
        "vllm": partial(_inside, engine="vllm"),
        "vllm-native": partial(_inside, engine="vllm-native"),
    }
)
"""By name; the first that runs is warmed up, and says what the machine carries."""

SAID: Mapping[str, str] = MappingProxyType(
    {
        "fcfs": "vllm serve, fcfs",
        "plug-in": "vllm serve --scheduler-cls headway_vllm.HeadwayAsyncScheduler",
        "behind": "vllm serve, fcfs, behind --engine openai",
        "behind-priority": "vllm serve, priority, behind --engine openai",
        "vllm": "--engine vllm",
        "vllm-native": "--engine vllm-native",
    }
)
