"""A whole cluster on this machine: its private store, its processes and its life."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.errors import Code, HeadwayError
from services.local import prometheus
from services.local.forked import Template
from services.local.launch import LaunchingMachine
from services.local.options import ClusterOptions, process_specs, worker_spec
from services.local.process_spec import ProcessSpec
from services.local.run_file import SECRET_FILE, RunningCluster, leave_run_file, take_run_file_away
from services.local.standby_workers import StandbyWorkers
from services.local.store import PrivateStore, private_store
from services.local.supervisor import Supervisor
from services.local.taken_ids import refuse_taken_ids
from services.local.worker_scaler import WorkerScaler
from services.runtime.config import ServiceConfig
from services.runtime.essential import Ending, essential
from services.runtime.identity.roles import ServiceRole
from services.runtime.identity.tls_files import tls_options

CERTIFICATES = "certs"
"""In the run folder, unless the options name another."""
_ASKED = (ServiceRole.GATEWAY, ServiceRole.AUTOSCALER)
"""Roles that are called from outside the cluster, by the names of their hosts."""

Say = Callable[[str], None]


def say_nothing(line: str) -> None:
    """Drop the line."""


class LocalCluster:
    """A cluster that is started and stopped; as a context manager it serves inside.

    Without a ``store`` URL it has a private one. ``say`` takes lines for a terminal. Where other
    machines reach it, services prove their roles by certificates, which are made if missing.
    ``template``: what its services are copied from, where that imports already.
    """

    def __init__(
        self,
        options: ClusterOptions,
        log_folder: Path,
        say: Say = say_nothing,
        *,
        store: str = "",
        name: str = "default",
        template: Template | None = None,
    ) -> None:
        if options.needs_certificates and not options.certs:
            options = replace(options, certs=str(log_folder / CERTIFICATES))
        self.options = options
        self.log_folder = log_folder
        self._machine = machine(options.device)
        self._store_folder = tempfile.TemporaryDirectory(prefix="headway-store-")
        tls = self._keep_certificates(name)  # first: options of services follow from the files
        specs = process_specs(options, *self._machine)
        specs = prometheus.in_order(specs, options.metrics_port)
        self._shares_store = bool(store)
        if not store:
            private = private_store(Path(self._store_folder.name))
            store = private.url
            specs.insert(0, store_spec(private))
        self.config = ServiceConfig(
            service_id="supervisor",
            store=store,
            cluster=name,
            listen=options.service_listen,
            drain_timeout=options.drain_timeout,
            **tls,
        )
        if self.config.cluster_secret_file is None:
            secret = (log_folder / SECRET_FILE).absolute()
            self.config = self.config.model_copy(update={"cluster_secret_file": secret})
        here = LaunchingMachine(template or Template(log_folder))
        self.supervisor = Supervisor(specs, self.config, log_folder, say, here)
        self.scaler = self._make_scaler()
        self._listing: asyncio.Task[None] | None = None
        self._held_folder: int | None = None

    @property
    def url(self) -> str:
        """Base URL of its HTTP interface."""
        return self.options.url

    async def start(self) -> None:
        """Start everything and return when all serve.

        FAILED_PRECONDITION if a service gives up, or if another cluster has the run folder or
        the ids.
        """
        self._held_folder = hold_folder(self.log_folder)
        if self._shares_store:
            specs = [process.spec for process in self.supervisor.processes]
            await refuse_taken_ids(specs, self.config)
        if self.options.metrics_port:
            keeping = prometheus.keep_targets(
                self.log_folder / prometheus.FILE_NAME, self.supervisor
            )
            self._listing = essential(keeping, "metrics targets")
        await self.supervisor.start()
        if self.scaler is not None:
            await self.scaler.start()
        await self.supervisor.serving()
        running = RunningCluster(self.url, self.config.cluster, self.config.store)
        leave_run_file(self.log_folder, running, pid=os.getpid())

    async def stop(self) -> None:
        """Drain and stop everything."""
        if self._held_folder is not None:
            take_run_file_away(self.log_folder)
        if self._listing is not None:
            self._listing.cancel()
        if self.scaler is not None:
            await self.scaler.stop()
        await self.supervisor.stop()
        self._store_folder.cleanup()
        if self._held_folder is not None:
            os.close(self._held_folder)
            self._held_folder = None

    async def __aenter__(self) -> LocalCluster:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    def _keep_certificates(self, cluster: str) -> dict[str, Any]:
        """Return the supervisor's TLS options; none without certificates."""
        if not self.options.certs:
            return {}
        # on loopback the library is not needed, and loading it takes a quarter of a second
        from services.local.certificates import keep_certificates

        folder, hosts = Path(self.options.certs), self.options.known_hosts()
        keep_certificates(folder, cluster=cluster, hosts=dict.fromkeys(_ASKED, hosts))
        return {**tls_options(folder / ServiceRole.SUPERVISOR)}

    def _make_scaler(self) -> WorkerScaler | None:
        """Return the service that starts and drains workers; None without autoscaling."""
        bounds = self.options.autoscale
        if bounds is None:
            return None
        standby = None
        if bounds.standby:
            standby = StandbyWorkers(
                self.supervisor, self.config, bounds.standby, self._standby_spec
            )
        roles = self.options.policies.scaled_roles()
        return WorkerScaler(self.supervisor, self.config, roles, self._next_spec, standby)

    def _next_spec(self, role: str, service_id: str) -> ProcessSpec:
        specs = [process.spec for process in self.supervisor.processes]
        place = sum(spec.service == "worker" for spec in specs)
        spec = worker_spec(self.options, role, service_id, place, *self._machine)
        return prometheus.beside(spec, specs, self.options.metrics_port)

    def _standby_spec(self, service_id: str) -> ProcessSpec:
        spec = self._next_spec("decode", service_id)
        return replace(spec, flags=(*spec.flags, "--standby"))


async def serve(cluster: LocalCluster, say: Say, say_hello: Callable[[], None]) -> None:
    """Run until SIGINT, SIGTERM or SIGHUP, then drain; a second signal ends everything at once.

    ``say_hello`` is called once all serve. HeadwayError if a service does not start, or if a task
    that supervises them has ended.
    """
    ending = Ending()

    def stop() -> None:
        if ending.begins.is_set():
            cluster.supervisor.kill()
        ending.begins.set()

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(ending.take)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop)
    num_processes = len(cluster.supervisor.processes)
    say(f"starting {num_processes} processes; their logs are in {cluster.log_folder}/")
    starting = asyncio.create_task(cluster.start())
    ends = asyncio.create_task(ending.begins.wait())
    try:
        await asyncio.wait((starting, ends), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            say_hello()
        await ends
        say("draining (Ctrl-C again to end at once)")
    finally:
        starting.cancel()
        await cluster.stop()
        say("stopped")
    if ending.failure:
        message = f"the supervision of {ending.failure!r} has ended: see the error above"
        raise HeadwayError(Code.INTERNAL, message)


def store_spec(store: PrivateStore) -> ProcessSpec:
    """Return the process of a private store."""
    return ProcessSpec("store", "store", command=store.command, address=f"unix:{store.socket}")


def hold_folder(folder: Path) -> int:
    """Lock a run folder until the returned descriptor is closed, by the kernel at the latest.

    FAILED_PRECONDITION if another cluster runs there: it would lose its logs.
    """
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        message = f"--log-dir is {folder}, where another cluster runs: stop it, or give another"
        raise HeadwayError(Code.FAILED_PRECONDITION, message) from None
    return held


def machine(device: str) -> tuple[int, int]:
    """Return the cores that this process may use, and the GPUs if they are asked for."""
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if device != "cuda":
        return num_cores or 1, 0
    try:  # without importing torch, which takes seconds
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return num_cores or 1, 1
    return num_cores or 1, len(listed.stdout.splitlines())
