"""One life of a live service: started, drained and stopped by the live runtime."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from unittest import mock

import numpy as np
from pydantic import BaseModel

from headway.console.recent import RecentRequests
from proof.vopr.engine import MemoryEngine
from proof.vopr.loop import ProcessLife
from proof.vopr.scenario import BLOCK_SIZE, MODEL, SeedScenario
from proof.vopr.world import ShellWorld, VirtualMachine
from services.autoscaler.config import AutoscalerConfig
from services.autoscaler.service import build as build_autoscaler
from services.gateway import service as gateway_service
from services.gateway.auth import key_line
from services.gateway.config import GatewayConfig
from services.gateway.model_loading import load_models
from services.gateway.served_model import ServedModels
from services.gateway.service import GatewayService
from services.gateway.service import build as build_gateway
from services.local.process_spec import ProcessSpec
from services.predictor.config import PredictorConfig
from services.predictor.service import PredictorService
from services.predictor.service import build as build_predictor
from services.runtime.config import ServiceConfig
from services.runtime.essential import Ending
from services.runtime.log_lines import LogLines
from services.runtime.reasoning import find_markers
from services.runtime.service import Runtime, Service, done_before, start
from services.runtime.service import drain as drain_service
from services.scheduler.config import SchedulerConfig
from services.scheduler.service import SchedulerService
from services.scheduler.service import build as build_scheduler
from services.worker import servicer as worker_servicer
from services.worker.config import WorkerConfig
from services.worker.servicer import WorkerServicer
from services.worker.servicer import build as build_worker

C = TypeVar("C", bound=ServiceConfig)
_PORTS = {"g": 50_100, "k": 50_200, "s": 50_300, "w": 50_400, "p": 50_500, "a": 50_600}
"""The first port of each kind of process, by the first letter of its name; ``k``: token sinks."""
MOST_WORKERS = 6
_LEADER_TTL = 2.0
_TRANSFER_TIMEOUT = 4.0
DRAIN_TIMEOUT = 10.0
PROFILE = "llama-8b-a100"


def address_of(name: str) -> str:
    """Return where a process listens, whatever life it has."""
    return f"127.0.0.1:{_PORTS[name[0]] + int(name[1:])}"


class VirtualProcess:
    """A process of a history, as its supervisor has it."""

    def __init__(self, world: ShellWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.pid = next(world.pids)
        self.returncode: int | None = None
        self._ended: asyncio.Future[int] = world.loop.create_future()

    async def wait(self) -> int:
        """Return its exit status."""
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        """End at once."""
        self.ended(-number)

    def ended(self, status: int) -> None:
        """Let the supervisor hear of its end; a repeat does nothing."""
        if self.returncode is None:
            self.returncode = status
            self._ended.set_result(status)


class ShellProcess(VirtualProcess):
    """One life of a live service, from its start to its end."""

    def __init__(self, world: ShellWorld, name: str, config: Any, build: Any) -> None:
        super().__init__(world, name)
        self.life = ProcessLife(world.loop, name)
        self.machine = VirtualMachine(world, name, self.pid)
        self.service: Service | None = None
        self.runtime: Runtime[Any] | None = None
        self.is_draining = False
        self.gone: Callable[[int], None] = self.ended
        """Takes its exit status once it has ended."""
        self._ending: Ending | None = None
        self.life.handler = partial(world.failed, self.life)
        world.loop.start(self.life, self._live(config, build))

    async def _live(self, config: Any, build: Any) -> None:
        self._ending = ending = Ending()
        async with AsyncExitStack() as undo:
            service_start = start(config, build, undo, LogLines(None), self.machine)
            starting = asyncio.create_task(service_start)
            if not await done_before(starting, ending.begins):
                self.gone(0)
                return
            started = starting.result()
            self.runtime, self.service, _ = started
            await drain_service(*started, ending)
        self.world.loop.later(0.0, partial(self.gone, 0))

    def send_signal(self, number: int) -> None:
        """Take SIGTERM as the live process does, running work first; end at once for any other."""
        if number != signal.SIGTERM:
            self.gone(-number)
            return
        self.is_draining = True
        if self._ending is not None:
            self._ending.begins.set()
        else:
            self.gone(0)


class GatewayShell(ShellProcess):
    """A gateway."""

    def __init__(
        self, world: ShellWorld, name: str, spec: ProcessSpec, skew: float, preset: str
    ) -> None:
        config = gateway_config(world.scenario, name, skew, preset)
        super().__init__(world, name, config, build_gateway)

    @property
    def core(self) -> Any:
        """Its core, None until it has started."""
        return self.service.cluster.core if isinstance(self.service, GatewayService) else None

    @property
    def recent(self) -> RecentRequests:
        """Requests that have ended lately, by its own word."""
        assert isinstance(self.service, GatewayService), "it has started"
        return self.service.console.feed.recent


class SchedulerShell(ShellProcess):
    """A scheduler."""

    def __init__(
        self, world: ShellWorld, name: str, spec: ProcessSpec, skew: float, preset: str
    ) -> None:
        common, policy = _common(name, name, skew, preset), world.scenario.policy
        config = config_of(SchedulerConfig, **common, policy=policy, leader_ttl=_LEADER_TTL)
        super().__init__(world, name, config, build_scheduler)

    @property
    def core(self) -> Any:
        """The core of its term, None without one."""
        term = self.service._term if isinstance(self.service, SchedulerService) else None
        return term._core if term is not None and term.has_begun else None


class WorkerShell(ShellProcess):
    """A worker."""

    def __init__(
        self, world: ShellWorld, name: str, spec: ProcessSpec, skew: float, preset: str
    ) -> None:
        shape = world.scenario.shape
        config = config_of(
            WorkerConfig,
            **_common(name, spec.service_id, skew, preset),
            model_name=MODEL,
            role=_flag(spec, "--role"),
            standby="--standby" in spec.flags,
            dp=shape.num_units,
            chunk_tokens=shape.chunk_tokens,
            block_size=BLOCK_SIZE,
            num_blocks=shape.num_blocks,
            prefix_caching=shape.prefix_caching,
            predict_every=shape.predict_every,
            move_rounds=4,
            async_scheduling=shape.runs_ahead,
            transfer_timeout=_TRANSFER_TIMEOUT,
        )
        super().__init__(world, name, config, partial(build_worker, load=self._load))

    def _load(self, config: WorkerConfig) -> MemoryEngine:
        return MemoryEngine(self.world, self.machine)

    @property
    def core(self) -> Any:
        """Its core, None until its model is loaded."""
        service = self.service._service if isinstance(self.service, WorkerServicer) else None
        return service._core if service is not None else None

    @property
    def role(self) -> str:
        """The role that it serves in, "" until its model is loaded."""
        service = self.service._service if isinstance(self.service, WorkerServicer) else None
        return service.role.value if service is not None else ""


class PredictorShell(ShellProcess):
    """A predictor; it scores without a network."""

    def __init__(
        self, world: ShellWorld, name: str, spec: ProcessSpec, skew: float, preset: str
    ) -> None:
        common = _common(name, name, skew, preset)
        fields = PredictorConfig.model_fields
        known = {key: common[key] for key in common if key in fields}
        config = config_of(PredictorConfig, **known)
        super().__init__(world, name, config, self._build)

    async def _build(self, runtime: Runtime[PredictorConfig]) -> PredictorService:
        service = await build_predictor(runtime)
        service._models._scorers[MODEL] = _MemoryScorer(self.world)  # type: ignore[assignment]
        return service


class _MemoryScorer:
    """A predictor's network that says how far 24 tokens are."""

    def __init__(self, world: ShellWorld) -> None:
        self._world = world

    async def score(self, hidden: Any, counts: Any) -> _Scores:
        self._world.hit("the predictor answers")
        return _Scores(np.maximum(24.0 - counts, 0.0))

    async def close(self) -> None:
        """Do nothing."""


class _Scores(NamedTuple):
    remaining: Any
    version: str = "1"
    weight: float = 1.0


class AutoscalerShell(ShellProcess):
    """An autoscaler."""

    def __init__(
        self, world: ShellWorld, name: str, spec: ProcessSpec, skew: float, preset: str
    ) -> None:
        limits: dict[str, Any] = dict.fromkeys(
            ("max_prefill", "max_decode", "max_unified"), MOST_WORKERS // 2
        )
        config = config_of(
            AutoscalerConfig,
            # what it scales is decided as the cluster starts
            **_common(name, name, skew, world.scenario.preset),
            model_name=MODEL,
            budget=MOST_WORKERS,
            actuator=_flag(spec, "--actuator"),
            **limits,
        )
        super().__init__(world, name, config, build_autoscaler)


SHELLS: Mapping[str, Callable[[ShellWorld, str, ProcessSpec, float, str], ShellProcess]] = {
    "gateway": GatewayShell,
    "scheduler": SchedulerShell,
    "worker": WorkerShell,
    "predictor": PredictorShell,
    "autoscaler": AutoscalerShell,
}
"""One life of each service: of a host by its name, with its clock's error and a preset."""


def _flag(spec: ProcessSpec, name: str) -> str:
    """Return the value that a process's flags give last."""
    return [value for flag, value in pairwise(spec.flags) if flag == name][-1]


def gateway_config(scenario: SeedScenario, name: str, skew: float, preset: str) -> GatewayConfig:
    """Return a gateway's configuration."""
    return config_of(
        GatewayConfig,
        **_common(name, name, skew, preset),
        sink_listen=address_of(f"k{name[1:]}"),
        http_port=0,
        model_name=MODEL,
        max_model_len=scenario.shape.num_blocks * BLOCK_SIZE,
        request_timeout=scenario.request_timeout,
        access_log=False,
        past_interval=scenario.past_interval,
        api_key_file=keys_file(scenario.tenants) if scenario.tenants else None,
    )


@cache
def models_of(num_blocks: int) -> ServedModels:
    """Return the models of gateways whose workers have so many blocks."""
    scenario = SeedScenario(0)
    config = gateway_config(scenario, "g0", 0.0, "sbs")
    return load_models(config.model_copy(update={"max_model_len": num_blocks * BLOCK_SIZE}))


@contextmanager
def files_read_once() -> Iterator[None]:
    """Give services what the model's files have said before: nobody writes them in a history."""

    def load(config: GatewayConfig) -> ServedModels:
        return models_of(config.max_model_len // BLOCK_SIZE)

    with (
        mock.patch.object(gateway_service, "load_models", load),
        mock.patch.object(worker_servicer, "find_markers", _markers_of),
    ):
        yield


_markers_of = cache(find_markers)


def config_of(kind: type[C], **values: Any) -> C:
    """Return a configuration of these values; nothing is read from the environment."""
    config = kind.__new__(kind)
    BaseModel.__init__(config, **values)
    return config


def _common(name: str, service_id: str, skew: float, preset: str) -> dict[str, Any]:
    return {
        "service_id": service_id,
        "cluster": "proof",
        "listen": address_of(name),
        "preset": preset,
        "profile": PROFILE,
        "clock_error": skew,
        "drain_timeout": DRAIN_TIMEOUT,
        "hang_timeout": 0.0,
        "cluster_secret_file": secret_file(),
    }


@cache
def keys_file(tenants: tuple[str, ...]) -> Path:
    """Return the file with the keys of tenants, each its own name."""
    file = Path(tempfile.mkdtemp(prefix="headway-proof-")) / "keys"
    file.write_text("\n".join(key_line(name, name) for name in tenants), "utf-8")
    file.chmod(0o600)
    return file


@cache
def secret_file() -> Path:
    """Return the file with the secret of all clusters."""
    return Path(tempfile.mkdtemp(prefix="headway-proof-")) / "secret"
