"""A service as a process: started, watched, restarted, stopped."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from headway.errors import Code, HeadwayError
from services.local.launch import LaunchedProcess, LaunchingMachine
from services.local.process_spec import ProcessSpec
from services.runtime import failpoints
from services.runtime.essential import end_tasks, essential

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_HEALTHY_AFTER = 30.0  # seconds of life that forgive earlier deaths
_POLL_INTERVAL = 0.05
_LOG_LINES_SHOWN = 15
_LOG_BYTES_READ = 16_384
_TRIALS = 3  # a service that has never served and died so often will not
_WRONG_CONFIGURATION = 2  # exit status
_NOT_STARTED = 126  # as a shell says it


class SupervisedProcess:
    """A process, restarted with growing pauses while it keeps dying.

    ``find`` says where the process with a pid serves, "" while it does not. A process that
    exits with status 2, or dies ``_TRIALS`` times before it has ever served, is given up.
    """

    def __init__(
        self,
        spec: ProcessSpec,
        log_folder: Path,
        say: Callable[[str], None],
        find: Callable[[ProcessSpec, int], Awaitable[str]],
        machine: LaunchingMachine,
    ) -> None:
        self.spec = spec
        self.address = ""
        self.num_deaths = 0
        self.next_life: Mapping[str, str] = {}
        """Environment of the next process alone, over that of ``start``."""
        self.log_path = log_folder / f"{spec.service_id}.log"
        self._say = say
        self._find = find
        self._machine = machine
        self._process: LaunchedProcess | None = None
        self._stopping = False
        self._has_served = False
        self._given_up = False
        self._settled = asyncio.Event()  # serving, or given up
        self._task: asyncio.Task[None] | None = None
        self._noticing: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    @property
    def is_awaited(self) -> bool:
        """Return whether it neither serves nor has been given up."""
        return not self._settled.is_set()

    @property
    def is_given_up(self) -> bool:
        """Return whether it will not be started again."""
        return self._given_up

    def start(self, environment: Mapping[str, str]) -> None:
        """Run it from now on."""
        self.log_path.unlink(missing_ok=True)
        name = self.spec.service_id
        self._task = essential(self._keep_running(environment), name, may_return=True)

    def become(self, spec: ProcessSpec) -> None:
        """Let the running process serve as ``spec`` says; a restarted one begins so.

        ``spec`` has the same id; it serves anew once it is found.
        """
        self.spec = spec
        self.address = ""
        self._settled.clear()
        if self.pid is not None and self._noticing is not None:
            self._noticing.cancel()
            self._noticing = self._watch_start(self.pid)

    async def serving(self) -> None:
        """Return once it serves; FAILED_PRECONDITION where it has been given up."""
        await self._settled.wait()
        if self._given_up:
            message = f"{self.spec.service_id} does not start: see {self.log_path}"
            raise HeadwayError(Code.FAILED_PRECONDITION, message)

    async def _keep_running(self, environment: Mapping[str, str]) -> None:
        loop, pause = asyncio.get_running_loop(), _SHORTEST_PAUSE
        while not self._stopping:
            started_at = loop.time()
            try:
                status = await self._run_once(environment)
            except OSError as error:  # its log cannot be opened, or the machine is full
                self.show(f"cannot be started: {error}")
                status = _NOT_STARTED
            self.num_deaths += 1
            # a failpoint strikes in one life alone: else nothing would ever go on
            environment = {k: v for k, v in environment.items() if k != failpoints.VARIABLE}
            if self._stopping:
                return
            is_hopeless = self.num_deaths == _TRIALS or status == _WRONG_CONFIGURATION
            if not self._has_served and is_hopeless:
                self._show_death(status, "given up")
                self._given_up = True
                self._settled.set()
                return
            if loop.time() - started_at >= _HEALTHY_AFTER:
                pause = _SHORTEST_PAUSE
            self._show_death(status, f"restarting in {pause:.1f} s")
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _run_once(self, environment: Mapping[str, str]) -> int:
        environment, self.next_life = {**environment, **self.next_life}, {}
        self._process = await self._machine.launch(self.spec, environment, self.log_path, self.show)
        self.show("starting")
        self._noticing = self._watch_start(self._process.pid)
        try:
            return await self._process.wait()
        finally:
            self._noticing.cancel()
            self.address = ""
            self._settled.clear()

    def _watch_start(self, pid: int) -> asyncio.Task[None]:
        return essential(self._notice_serving(pid), f"start of {pid}", may_return=True)

    async def _notice_serving(self, pid: int) -> None:
        while not self.address:
            await asyncio.sleep(_POLL_INTERVAL)
            self.address = await self._find(self.spec, pid)
        self._has_served = True
        self._settled.set()
        self.show("standing by" if self.spec.membership else "serving")

    def show(self, state: str) -> None:
        """Print a line on the terminal."""
        pid = f"pid {self.pid}" if self.pid else ""
        self._say(f"{self.spec.service_id:<12} {pid:<12} {self.address:<22} {state}")

    def _show_death(self, status: int, what_now: str) -> None:
        how = f"exit {status}" if status >= 0 else f"signal {-status}"
        self.show(f"died ({how}), {what_now}; {self.log_path} ends:")
        for line in self.last_lines():
            self._say(f"    {line}")

    def last_lines(self) -> list[str]:
        """Return the end of its log."""
        if not self.log_path.exists():
            return []
        with self.log_path.open("rb") as log:
            log.seek(max(0, self.log_path.stat().st_size - _LOG_BYTES_READ))
            return log.read().decode(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]

    async def stop(self, patience: float) -> None:
        """SIGTERM, then SIGKILL after ``patience`` seconds; a repeat does nothing."""
        self._stopping = True
        process = self._process
        if self.pid is not None and process is not None:
            process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(patience):
                    await process.wait()
            except TimeoutError:
                self.show("did not stop in time: killed")
                self.kill()
                await process.wait()
        await end_tasks(self._task)

    def restart(self) -> None:
        """End it now: another is started, as after any death."""
        if self.pid is not None and self._process is not None:
            self._machine.kill(self._process)

    def kill(self) -> None:
        """End it and what it may have started, now and for good."""
        self._stopping = True
        self.restart()
