"""Processes under measurement: started, asked whether they serve, counted, ended."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import httpx

from headway.errors import Code, HeadwayError
from services.local.tether import tethered
from services.runtime.rooms import child_environment

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LAST_LINES = 5
INSTALL_PATIENCE = 1800.0


# A process that ends its group when standard input does: with who holds the other end of that pipe.
_KEEPER = """
import os, sys
if os.fork() == 0:
    if os.fork() == 0:
        os.close(1), os.close(2)
        sys.stdin.buffer.read()
        os.killpg(0, 9)
    os._exit(0)
os.wait()
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Process:
    """A process in a session of its own, its output in a file; a context manager.

    What it starts ends with this process, too, even where this one is killed.
    """

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                tethered([sys.executable, "-I", "-S", "-c", _KEEPER, *command]),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**child_environment(), **(env or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Return the id of the process itself; it may have children."""
        return self._process.pid

    def check(self) -> None:
        """Raise UNAVAILABLE, with the end of its output, where it has died."""
        status = self._process.poll()
        if status is not None:
            message = f"{self.name} ended ({status}): {self.last_words()}"
            raise HeadwayError(Code.UNAVAILABLE, message)

    def last_words(self) -> str:
        """Return the end of what it said."""
        return last_words(self._log)

    def stop(self, grace: float = 5.0) -> None:
        """End it and what it started; SIGKILL for what is left after ``grace`` seconds."""
        for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(patience)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        self._process.poll()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()


def last_words(log: Path) -> str:
    """Return the end of what a process wrote."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return " / ".join([line.strip() for line in lines if line.strip()][-_LAST_LINES:])


async def until_answers(
    process: Process, ask: Callable[[], Awaitable[str]], *, within: float, poll: float = 0.1
) -> None:
    """Ask again and again until a process answers; ``ask`` returns what is wrong, "" for nothing.

    UNAVAILABLE where it ends, or does not answer within so many seconds.
    """
    give_up_at = time.monotonic() + within
    while True:
        process.check()
        if not (wrong := await ask()):
            return
        if time.monotonic() > give_up_at:
            said = f"{wrong}; {process.last_words()}"
            message = f"{process.name} does not answer after {within:g} s: {said}"
            raise HeadwayError(Code.UNAVAILABLE, message)
        await asyncio.sleep(poll)


async def until_ok(process: Process, url: str, *, within: float) -> None:
    """Wait until a process answers there with 200; UNAVAILABLE where it ends, or takes too long."""
    async with httpx.AsyncClient(timeout=5.0) as client:

        async def ask() -> str:
            try:
                status = (await client.get(url)).status_code
            except httpx.TransportError as error:
                return str(error)
            return "" if status == 200 else f"HTTP {status}"

        await until_answers(process, ask, within=within, poll=0.25)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and of what it started and still runs, user and system."""
    ticks, parents = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:  # it has just ended
                continue
            fields = stat.rpartition(")")[2].split()
            number = int(folder.name)
            parents[number], ticks[number] = int(fields[1]), int(fields[11]) + int(fields[12])
    return sum(ticks[each] for each in ticks if _descends(each, pid, parents)) / _TICKS_PER_S


def _descends(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    while pid not in (ancestor, 0):
        pid = parents.get(pid, 0)
    return pid == ancestor


def install(folder: Path, requirement: str, unused: Sequence[str] = ()) -> str:
    """Install into an environment of its own, less what is ``unused``; return why that failed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    steps = [[sys.executable, "-m", "venv", str(folder)], [*pip, "install", requirement]]
    if unused:
        steps.append([*pip, "uninstall", "--yes", *unused])
    failures = (run_quietly(step, INSTALL_PATIENCE) for step in steps)
    return next(filter(None, failures), "")


def run_quietly(command: Sequence[str], patience: float) -> str:
    """Return what a failed command said last; empty where it ended well within ``patience`` s."""
    started_at = time.monotonic()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=patience, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{command[0]} took over {time.monotonic() - started_at:.0f} s"
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    lines = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()
    return "" if done.returncode == 0 else f"exit {done.returncode}: {lines[-1]}"
