"""A local cluster with handles for faults: its processes, the links between them, its store."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

import httpx
import redis.asyncio as redis

from headway.errors import HeadwayError
from proof.chaos.certificates import Certificates
from proof.chaos.proxy import Link, Proxy, Rules, find_dialler
from services.local import prometheus
from services.local.cluster import LocalCluster
from services.local.options import ClusterOptions
from services.local.store import free_port
from services.local.supervised import SupervisedProcess
from services.runtime import failpoints
from services.runtime.health import is_serving
from services.runtime.identity.roles import ServiceRole

_NAME = "chaos"
_KIB = 1024
_LONGEST_LOOK = 2.0  # seconds
_LOOK, _LOOKS_AT_A_DRAIN = 0.05, 600  # seconds; 30 s in all
_SETTLED = 1.0  # seconds: shorter connections are health checks


class NoTargetError(Exception):
    """A fault that finds nothing to hit now."""


class Rig:
    """A cluster whose services are announced at proxies. A context manager.

    Only processes that this cluster has started are touched.
    """

    def __init__(
        self, options: ClusterOptions, log_folder: Path, *, proxied: bool, certified: bool = False
    ) -> None:
        """``certified``: services know each other by certificates, else by the secret."""
        self.lines: list[str] = []
        self.certificates = Certificates(_NAME) if certified else None
        with self.certificates.in_environment() if self.certificates else nullcontext():
            self.cluster = LocalCluster(options, log_folder, self.lines.append, name=_NAME)
        self._certify()
        self.rules = Rules()
        self.broken: list[str] = []
        """Promises beside the clients' that a fault has seen broken."""
        self.num_cut = 0
        """Faults of links so far."""
        self._proxies: list[Proxy] = []
        self._busy: set[str] = set()
        self._store: redis.Redis | None = None
        if proxied:
            self._place_proxies()

    def _certify(self) -> None:
        for process in self.processes:
            spec = process.spec
            if self.certificates is not None and not spec.command:
                issued = self.certificates.issue(ServiceRole(spec.service), spec.service_id)
                options = [(f"--{name.replace('_', '-')}", str(issued[name])) for name in issued]
                process.spec = replace(spec, flags=(*spec.flags, *chain(*options)))

    def _place_proxies(self) -> None:
        services = [each for each in self.processes if not each.spec.command]
        first = free_port(2 * len(services))
        for place, process in enumerate(services):
            spec, port, target = process.spec, first + 2 * place, first + 2 * place + 1
            # a gateway's other port is its clients'
            sink = "sink-" if spec.service == "gateway" else ""
            addresses = (
                *(f"--{sink}listen", f"127.0.0.1:{target}"),
                *(f"--{sink}advertise", f"127.0.0.1:{port}"),
            )
            process.spec = replace(spec, flags=(*spec.flags, *addresses))
            proxy = Proxy(spec.service_id, port, target, self.rules, self._dialler)
            self._proxies.append(proxy)

    def _dialler(self, port: int) -> str:
        return find_dialler(port, self.pids())

    async def __aenter__(self) -> Rig:
        for process in self.processes:
            _earlier(process).unlink(missing_ok=True)
        for proxy in self._proxies:
            await proxy.start()
        try:
            await self.cluster.start()
        except BaseException:
            await self.__aexit__()
            raise
        self._store = redis.from_url(self.cluster.config.store, socket_timeout=2.0)
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._store is not None:
            await self._store.aclose()
        await self.cluster.stop()
        for proxy in self._proxies:
            await proxy.stop()
        if self.certificates is not None:
            self.certificates.close()

    # --- processes --------------------------------------------------------------------

    @property
    def processes(self) -> list[SupervisedProcess]:
        """The store's and the services' processes."""
        return self.cluster.supervisor.processes

    def pids(self) -> Mapping[str, int]:
        """Return the process ids of those that run now."""
        pids = {each.spec.service_id: each.pid for each in self.processes}
        return {name: pid for name, pid in pids.items() if pid is not None}

    @contextmanager
    def target(self, rng: random.Random, services: Collection[str]) -> Iterator[SupervisedProcess]:
        """Choose a process of these services that runs and has no other fault meanwhile."""
        candidates = [
            each
            for each in self.processes
            if each.spec.service in services
            and each.pid is not None
            and each.spec.service_id not in self._busy
        ]
        if not candidates:
            raise NoTargetError
        chosen = rng.choice(candidates)
        with self.busy(chosen.spec.service_id):
            yield chosen

    @contextmanager
    def busy(self, *names: str) -> Iterator[None]:
        """Keep other faults away from these."""
        if self._busy & set(names):
            raise NoTargetError
        self._busy |= set(names)
        try:
            yield
        finally:
            self._busy -= set(names)

    @contextmanager
    def stopped(self, process: SupervisedProcess) -> Iterator[None]:
        """Let a process stand still meanwhile."""
        pid = process.pid
        if pid is None:
            raise NoTargetError
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            if process.pid == pid:
                os.kill(pid, signal.SIGCONT)

    @contextmanager
    def no_disk(self, process: SupervisedProcess) -> Iterator[None]:
        """Let every write of a process to a file fail meanwhile, as on a full disk."""
        pid = process.pid
        if pid is None:
            raise NoTargetError
        soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                if process.pid == pid:
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))

    async def restart_with(self, process: SupervisedProcess, points: str) -> None:
        """Drain a process, and start it again with these failpoints armed in its next life."""
        pid, num_deaths = process.pid, process.num_deaths
        process.next_life = {failpoints.VARIABLE: points}
        with suppress(FileNotFoundError):  # the next life has one of its own
            with _earlier(process).open("ab") as earlier:
                earlier.write(process.log_path.read_bytes())
            process.log_path.unlink()
        if pid is None:
            raise NoTargetError
        os.kill(pid, signal.SIGTERM)
        for _ in range(_LOOKS_AT_A_DRAIN):
            if process.num_deaths > num_deaths:
                return
            await asyncio.sleep(_LOOK)
        process.restart()

    @property
    def num_losses(self) -> int:
        """Workers that have died, and faults of links, which may look the same to a gateway."""
        died = sum(each.num_deaths for each in self.processes if each.spec.service == "worker")
        return died + self.num_cut

    def memory(self) -> dict[str, float]:
        """Return the resident memory of every process, MiB."""
        return {name: _resident_mib(pid) for name, pid in self.pids().items()}

    async def serving(self, patience: float) -> list[str]:
        """Wait until every process serves; return those that do not within ``patience`` (s)."""
        waits = {
            asyncio.create_task(each.serving()): each.spec.service_id for each in self.processes
        }
        done, late = await asyncio.wait(waits, timeout=patience)
        for task in late:
            task.cancel()
        given_up = [waits[task] for task in done if task.exception() is not None]
        return [*given_up, *(waits[task] for task in late)]

    # --- links and the store ----------------------------------------------------------

    async def link(self, rng: random.Random) -> Link:
        """Choose a link between two services of this cluster that has been open for a while."""
        now = asyncio.get_running_loop().time()
        connections = [
            connection
            for proxy in self._proxies
            for connection in proxy.connections
            if now - connection.began_at > _SETTLED
        ]
        connections.sort(key=lambda connection: connection.began_at)
        for connection in rng.sample(connections, len(connections)):
            link = await connection.find_link()
            if link[0]:
                self.num_cut += 1
                return link
        raise NoTargetError

    def reset(self, link: Link) -> int:
        """Break a link's connections; return how many."""
        connections = [
            each for proxy in self._proxies for each in proxy.connections if each.link == link
        ]
        for connection in connections:
            connection.reset()
        return len(connections)

    async def cut_off(self, service_id: str) -> None:
        """Break every connection of a service: it has to show its certificate anew."""
        self.num_cut += 1
        for proxy in self._proxies:
            for connection in list(proxy.connections):
                if service_id in await connection.find_link():
                    connection.reset()

    async def is_reached(self, process: SupervisedProcess) -> bool:
        """Return whether a service answers a caller that knows the cluster's authority."""
        if not process.address:
            return False
        role = ServiceRole(process.spec.service)
        return await is_serving(process.address, self.cluster.config, role, within=_LONGEST_LOOK)

    @property
    def store(self) -> redis.Redis:
        """The store, as an operator reaches it."""
        assert self._store is not None, "the cluster runs"
        return self._store

    def key(self, name: str) -> str:
        """Return a key of this cluster in the store."""
        return f"headway:{_NAME}:{name}"

    async def leader(self) -> str:
        """Return the id of the leading scheduler, "" without one."""
        with suppress(redis.RedisError, OSError, HeadwayError):
            text = await self.store.get(self.key("leader"))
            parts = text.decode(errors="replace").split("|") if isinstance(text, bytes) else []
            if len(parts) == 3:
                return parts[1].rpartition("-")[0]
        return ""

    # --- what is left -----------------------------------------------------------------

    async def metric(self, service_id: str, name: str) -> float | None:
        """Return the sum of a process's metric over its labels; None where it shows none."""
        process = next(each for each in self.processes if each.spec.service_id == service_id)
        address = prometheus.address_of(process.spec)
        if not address:
            return None
        try:
            async with httpx.AsyncClient() as client:
                text = (await client.get(f"http://{address}/metrics", timeout=5)).text
        except httpx.HTTPError:
            return None
        lines = [line for line in text.splitlines() if line.startswith(name)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines) if lines else None

    def tracebacks(self) -> dict[str, int]:
        """Return how many tracebacks each process's logs have, where they have any."""
        counts: Counter[str] = Counter()
        for process in self.processes:
            for path in (process.log_path, _earlier(process)):
                with suppress(OSError):
                    number = path.read_bytes().count(b"Traceback (most recent call last)")
                    counts[process.spec.service_id] += number
        return dict(+counts)


def _earlier(process: SupervisedProcess) -> Path:
    return process.log_path.with_suffix(".earlier.log")


def _resident_mib(pid: int) -> float:
    with suppress(OSError), open(f"/proc/{pid}/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() / _KIB**2
    return 0.0
