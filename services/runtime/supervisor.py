"""Services of one machine as processes: started, watched, restarted, drained."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headway.errors import HeadwayError
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig
from services.runtime.local_store import die_with_parent
from services.runtime.store import Store

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_HEALTHY_AFTER = 30.0  # seconds of life that forgive earlier deaths
_POLL_INTERVAL = 0.1
_LOG_LINES_SHOWN = 15


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One service: ``python -m services.<service> --service-id <service_id> <flags>``."""

    service: str
    service_id: str
    flags: tuple[str, ...] = ()
    module: str = ""  # default: services.<service>


class SupervisedProcess:
    """One process, restarted with growing pauses while it keeps dying."""

    def __init__(self, spec: ProcessSpec, log_folder: Path, say: Callable[[str], None]) -> None:
        self.spec = spec
        self.address = ""
        self.process: asyncio.subprocess.Process | None = None
        self.log_path = log_folder / f"{spec.service_id}.log"
        self._say = say
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        running = self.process is not None and self.process.returncode is None
        return self.process.pid if running and self.process is not None else None

    def start(self, base_flags: Sequence[str]) -> None:
        """Run it from now on."""
        self._task = asyncio.create_task(self._keep_running(tuple(base_flags)))

    async def _keep_running(self, base_flags: tuple[str, ...]) -> None:
        loop, pause = asyncio.get_running_loop(), _SHORTEST_PAUSE
        while not self._stopping:
            started_at = loop.time()
            self.process = await self._spawn(base_flags)
            self.show("starting")
            status = await self.process.wait()
            self.address = ""
            if self._stopping:
                return
            if loop.time() - started_at >= _HEALTHY_AFTER:
                pause = _SHORTEST_PAUSE
            self.show(f"died (exit {status}), restarting in {pause:.1f} s; {self.log_path} ends:")
            for line in self.last_lines():
                self._say(f"    {line}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _spawn(self, base_flags: tuple[str, ...]) -> asyncio.subprocess.Process:
        module = self.spec.module or f"services.{self.spec.service}"
        with self.log_path.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, "--service-id", self.spec.service_id),
                *(*base_flags, *self.spec.flags),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the supervisor: it drains in order
                preexec_fn=die_with_parent,
            )

    def show(self, state: str) -> None:
        """One line on the terminal."""
        pid = f"pid {self.pid}" if self.pid else ""
        self._say(f"{self.spec.service_id:<12} {pid:<12} {self.address:<22} {state}")

    def last_lines(self) -> list[str]:
        """The end of its log."""
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return text.splitlines()[-_LOG_LINES_SHOWN:]

    async def stop(self, patience: float) -> None:
        """SIGTERM, then SIGKILL after ``patience`` seconds."""
        self._stopping = True
        process = self.process
        if process is not None and process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(patience):
                    await process.wait()
            except TimeoutError:
                self.show("did not stop in time: killed")
                process.kill()
                await process.wait()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class Supervisor:
    """All processes of a local cluster."""

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        config: ServiceConfig,
        log_folder: Path,
        say: Callable[[str], None],
    ) -> None:
        log_folder.mkdir(parents=True, exist_ok=True)
        self.processes = [SupervisedProcess(spec, log_folder, say) for spec in specs]
        self._config = config
        self._watch: asyncio.Task[None] | None = None
        self._store: Store | None = None

    async def start(self) -> None:
        """Start everything at once and follow it."""
        self._store = await Store.connect(self._config.store, self._config.cluster)
        for process in self.processes:
            process.log_path.unlink(missing_ok=True)
            process.start(("--store", self._config.store, "--cluster", self._config.cluster))
        self._watch = asyncio.create_task(self._follow(self._store))

    async def serving(self) -> None:
        """Return once every process serves."""
        while not all(process.address for process in self.processes):  # noqa: ASYNC110
            await asyncio.sleep(_POLL_INTERVAL)

    async def _follow(self, store: Store) -> None:
        """Learn from membership and health which processes serve, and where."""
        while True:
            for process in self.processes:
                if not process.address and process.pid is not None:
                    address = await self._serving_address(store, process.spec)
                    if address and process.pid is not None:
                        process.address = address
                        process.show("serving")
            await asyncio.sleep(_POLL_INTERVAL)

    async def _serving_address(self, store: Store, spec: ProcessSpec) -> str:
        try:
            members = await store.members(spec.service)
        except HeadwayError:
            return ""
        for member in members:
            if member.member_id == spec.service_id and await self._is_healthy(member.address):
                return member.address
        return ""

    async def _is_healthy(self, address: str) -> bool:
        async with open_channel(address, self._config) as channel:
            try:
                reply = await health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=1.0
                )
            except grpc.aio.AioRpcError:
                return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    async def stop(self) -> None:
        """Drain gateways, then schedulers, then the rest; no process is left behind."""
        if self._watch is not None:
            self._watch.cancel()
        patience = self._config.drain_timeout + 5.0
        for services in (("gateway",), ("scheduler",)):
            await self._stop_all(
                [p for p in self.processes if p.spec.service in services], patience
            )
        await self._stop_all(self.processes, patience)
        if self._store is not None:
            await self._store.close()

    def kill(self) -> None:
        """End everything now."""
        for process in self.processes:
            if process.pid is not None:
                os.kill(process.pid, signal.SIGKILL)

    @staticmethod
    async def _stop_all(processes: Sequence[SupervisedProcess], patience: float) -> None:
        await asyncio.gather(*(process.stop(patience) for process in processes))
