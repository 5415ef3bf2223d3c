"""How long a server takes from its command to its first answer, in wall time and in CPU time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from bench.cluster.processes import Process, cpu_seconds, until_answers

_POLL = 0.05  # seconds
_ONE_ANSWER = 120.0  # seconds


@dataclass(frozen=True, slots=True)
class Starting:
    """A server to start: its command, and the model that the first request names."""

    name: str
    command: Sequence[str]
    url: str
    model: str
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Seconds from the command to the first answer; ``cpu``: of all its processes together."""

    name: str
    wall: float
    cpu: float


def time_start(starting: Starting, folder: Path, within: float) -> StartTimes:
    """Start a server, ask it for one token, and stop it.

    Linux alone: processes are found below the command's in ``/proc``. HeadwayError (UNAVAILABLE)
    where nothing answers within so many seconds, or the command ends.
    """
    begun_at = time.monotonic()
    process = Process(starting.name, [*starting.command], folder, starting.environment)
    try:
        asyncio.run(_first_answer(process, starting, within))
        wall = time.monotonic() - begun_at
        return StartTimes(starting.name, wall, cpu_seconds(process.pid))
    finally:
        process.stop(40.0)


async def _first_answer(process: Process, starting: Starting, within: float) -> None:
    asked = {"role": "user", "content": "Add 1, 2."}
    body = {"model": starting.model, "messages": [asked], "max_tokens": 1}
    async with httpx.AsyncClient(timeout=_ONE_ANSWER) as client:

        async def ask() -> str:
            try:
                said = await client.post(f"{starting.url}/v1/chat/completions", json=body)
            except httpx.TransportError as error:
                return str(error)
            is_there = said.status_code == 200 and json.loads(said.text)["choices"]
            return "" if is_there else f"HTTP {said.status_code}"  # it loads

        await until_answers(process, ask, within=within, poll=_POLL)
