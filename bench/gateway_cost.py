"""What one gateway process costs: CPU per request and per token, in front of an emulated worker.

Starts a store, the emulated worker and a gateway, each a process of its own, and loads the
gateway with raw HTTP. CPU is the gateway process's own, from ``/proc``.

    python -m bench.gateway_cost --model models/headway-mini
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvloop

from services.runtime.local_store import LocalStore

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Load:
    """So many clients, each asking again as soon as it is answered, for ``duration`` seconds."""

    name: str
    num_clients: int
    max_tokens: int
    stream: bool
    duration: float

    def body(self, model: str) -> bytes:
        """One chat request."""
        content = "Add 17, 25 and 8, and tell me the sum of these three numbers, please."
        return json.dumps(
            {
                "model": model,
                "messages": [{"role": "user", "content": content}],
                "max_tokens": self.max_tokens,
                "ignore_eos": True,
                "stream": self.stream,
                "temperature": 0.7,
            }
        ).encode()


def cpu_of(pid: int) -> float:
    """CPU seconds of a process, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


async def ask_again_and_again(port: int, packed: bytes, until: float) -> tuple[int, list[float]]:
    """Requests answered, and their times."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    times: list[float] = []
    while time.monotonic() < until:
        began = time.monotonic()
        writer.write(packed)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"refused: {head!r} {await reader.read(1000)!r}")
        await _read_body(reader, head)
        times.append(time.monotonic() - began)
    writer.close()
    return len(times), times


async def _read_body(reader: asyncio.StreamReader, head: bytes) -> None:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            await reader.readexactly(int(line[15:]))
            return
    while not (await reader.read(2**16)).endswith(b"0\r\n\r\n"):
        pass


async def run(load: Load, port: int, pid: int, model: str) -> None:
    """Load the gateway and print what it cost."""
    body = load.body(model)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-length: {len(body)}\r\n\r\n"
    packed = head.encode() + body
    began_at, cpu = time.monotonic(), cpu_of(pid)
    until = began_at + load.duration
    found = await asyncio.gather(
        *(ask_again_and_again(port, packed, until) for _ in range(load.num_clients))
    )
    took, cpu = time.monotonic() - began_at, cpu_of(pid) - cpu
    num_requests = sum(count for count, _ in found)
    times = sorted(t for _, ts in found for t in ts)
    num_tokens = num_requests * load.max_tokens
    print(
        f"{load.name:26} {num_requests / took:8.0f} requests/s {num_tokens / took:8.0f} tokens/s "
        f"{1e6 * cpu / num_requests:8.0f} µs/request {1e6 * cpu / num_tokens:7.1f} µs/token "
        f"p50 {1e3 * times[len(times) // 2]:6.2f} ms, busy {100 * cpu / took:3.0f} %"
    )


def start(module: str, *args: str) -> subprocess.Popen[bytes]:
    """A service process."""
    return subprocess.Popen([sys.executable, "-m", module, *args], stdout=subprocess.DEVNULL)


def wait_for(holds: Callable[[], bool]) -> None:
    """Poll for up to 30 s."""
    deadline = time.monotonic() + 30
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError("the gateway did not come up")
        time.sleep(0.05)


def is_ready(port: int) -> bool:
    """Whether the gateway has its scheduler."""
    try:
        found = httpx.get(f"http://127.0.0.1:{port}/health", timeout=1).json()
        return bool(found["scheduler_connected"])
    except httpx.HTTPError:
        return False


def main() -> None:
    """Run all loads."""
    parser = argparse.ArgumentParser(description="what one gateway process costs")
    parser.add_argument("--model", default="models/headway-mini")
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--duration", type=float, default=8.0)
    parser.add_argument("--delay-ms", type=float, default=0.0, help="between the worker's passes")
    args = parser.parse_args()
    model = Path(args.model).resolve().name
    with LocalStore() as store:
        common = ("--store", store.url, "--cluster", "cost")
        processes = [
            start("bench.emulated_worker", *common, "--delay-ms", str(args.delay_ms)),
            start(
                "services.gateway",
                *common,
                *("--model", args.model, "--http-port", str(args.port), "--log-level", "warning"),
            ),
        ]
        try:
            wait_for(lambda: is_ready(args.port))
            for load in (
                Load("warm-up", 8, 8, True, 2.0),
                Load("1 client, 1 token", 1, 1, False, args.duration),
                Load("64 clients, 1 token", 64, 1, False, args.duration),
                Load("64 streams of 400 tokens", 64, 400, True, args.duration),
                Load("256 streams of 400 tokens", 256, 400, True, args.duration),
            ):
                uvloop.run(run(load, args.port, processes[1].pid, model))
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(20)


if __name__ == "__main__":
    main()
