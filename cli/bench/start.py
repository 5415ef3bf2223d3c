"""``headway bench start``: how long a server takes from its command to its first answer."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import httpx

from bench.runner.comparison import LiveComparison, Measurement, compare
from bench.runner.processes import Process, until_answers
from bench.runner.started import LiveTarget
from bench.runner.verdict import Figure
from bench.vllm.server import EngineLimits, Server
from cli.options import add_json, add_model, require_ranges
from services.local.store import free_port
from services.runtime.rooms import child_environment, module_command

_POLL = 0.05  # seconds
_ONE_ANSWER = 120.0  # seconds


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description = (
        "Starts `headway up`, and a plain `vllm serve` where vLLM is installed in the same "
        "environment, one after the other, asks for one token and stops it. CPU seconds are those "
        "of all processes; they hardly depend on what else the machine does."
    )
    add_model(parser)
    add = parser.add_argument
    add("--times", type=int, default=2, metavar="N", help="starts of each (2; the first is cold)")
    add("--log-dir", type=Path, default=Path("run/start"), help="the servers' logs (run/start)")
    add_json(parser, "write every start's seconds")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Start each as often as asked, and print."""
    require_ranges(args, times=(1, 100))
    args.log_dir.mkdir(parents=True, exist_ok=True)
    makers = {"headway up": _headway, **({"vllm serve": _vllm} if find_spec("vllm") else {})}
    starts = Starts(makers, args.model, args.log_dir)
    return asyncio.run(compare(starts, range(1, args.times + 1), args.json)).status


class Starting(NamedTuple):
    """A server to start: its command, and where it will answer."""

    command: Sequence[str]
    url: str
    environment: Mapping[str, str]


class Starts(LiveComparison):
    """Servers that are started and stopped; seeds are times.

    Linux alone: processes are found below the command's in ``/proc``.
    """

    figures = (Figure("wall", "s to the first answer", 0.1), Figure("cpu", "s of CPU", 0.1))

    def __init__(
        self,
        makers: Mapping[str, Callable[[str, Path], Starting]],
        model: str,
        folder: Path,
        within: float = 300.0,
    ) -> None:
        super().__init__()
        self._makers = makers
        self._model = model
        self._folder = folder
        self._within = within
        self._begun_at = 0.0
        self.systems = list(makers)

    @asynccontextmanager
    async def serve(self, system: str) -> AsyncIterator[LiveTarget]:
        """Start a server, and ask it for one token until it answers."""
        starting = self._makers[system](self._model, self._folder)
        self._begun_at = time.monotonic()
        process = Process(system, starting.command, self._folder, starting.environment)
        try:
            await self._first_answer(process, starting.url)
            yield LiveTarget(starting.url, processes={system: process.pid})
        finally:
            process.stop(40.0)

    async def _first_answer(self, process: Process, url: str) -> None:
        asked = {"role": "user", "content": "Add 1, 2."}
        body = {"model": Path(self._model).name, "messages": [asked], "max_tokens": 1}
        async with httpx.AsyncClient(timeout=_ONE_ANSWER) as client:

            async def ask() -> str:
                try:
                    said = await client.post(f"{url}/v1/chat/completions", json=body)
                except httpx.TransportError as error:
                    return str(error)
                is_there = said.status_code == 200 and json.loads(said.text)["choices"]
                return "" if is_there else f"HTTP {said.status_code}"  # it loads

            await until_answers(process, ask, within=self._within, poll=_POLL)

    async def measure(self, system: str, target: LiveTarget, regime: str, seed: int) -> Measurement:
        """Return the seconds of the start that has just ended."""
        wall, cpu = time.monotonic() - self._begun_at, sum(target.cpu_seconds().values())
        self.console.print(f"{system}, start {seed}: {wall:.1f} s, {cpu:.1f} s of CPU")
        return Measurement({"wall": wall, "cpu": cpu})


def _headway(model: str, folder: Path) -> Starting:
    port = free_port(2)
    flags = ("--model", model, "--port", str(port), "--log-dir", str(folder / "up"))
    url = f"http://127.0.0.1:{port}"
    return Starting(module_command("cli", "up", *flags), url, child_environment())


def _vllm(model: str, folder: Path) -> Starting:
    port = free_port()
    server = Server(model, EngineLimits(max_running=64))
    return Starting(server.command(port), f"http://127.0.0.1:{port}", server.variables())
