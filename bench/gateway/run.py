"""The gateways of ``headway bench gateway``: ours with its emulated worker, peers with a mock."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bench.gateway.peers import PeerGateway
from bench.runner.comparison import LiveComparison, Measurement
from bench.runner.processes import Process, until_answers
from bench.runner.started import LiveTarget
from bench.runner.verdict import Figure
from bench.serve.client import Client, Endpoint, RequestFailedError
from bench.serve.closed_loop import Loop, run_loop
from headway.metrics import percentile
from services.local.store import LocalStore, free_port
from services.runtime.rooms import module_command

PATH = "/v1/chat/completions"
PROMPT = "Add 17, 25, 8, 41, 3, 77, 12."
START_PATIENCE = 90.0
MOCK_MODEL = "headway-mini"
NONE = "none"
OURS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "headway": ("--log-level", "error"),
        "headway-logged": ("--log-level", "info"),
        "headway-bare": ("--log-level", "error", "--num-lives", "0", "--no-access-log"),
    }
)
"""Our gateway by name: lives but no log, both, and neither."""
_SETTLE = 1.0  # seconds of load before the first round


class GatewayComparison(LiveComparison):
    """The mock backend without a gateway, then every gateway; seeds are rounds."""

    figures = (
        Figure("latency_p50", "one token alone: P50, ms", 0.05),
        Figure("latency_p99", "one token alone: P99, ms", 0.05),
        Figure("requests_per_s", "requests/s", 0.0, more_is_better=True),
        Figure("us_per_request", "µs of CPU a request", 1.0),
        Figure("tokens_per_s", "tokens/s", 0.0, more_is_better=True),
        Figure("us_per_token", "µs of CPU a token", 0.1),
    )
    stay_up = True
    takes_median = True
    width = 160

    def __init__(self, args: Namespace, peers: Sequence[PeerGateway], folder: Path) -> None:
        super().__init__()
        self._args = args
        self._peers = {peer.name: peer for peer in peers}
        self._folder = folder
        self._backend_port = 0
        self.systems = [NONE, *(OURS if args.records else ["headway"]), *self._peers]
        self.optional = list(self._peers)

    @asynccontextmanager
    async def serve(self, system: str) -> AsyncIterator[LiveTarget]:
        """Start the mock backend, ours with all that it needs, or a peer before the backend."""
        port, env = free_port(), None
        delay = ("--delay-ms", str(self._args.delay_ms))
        with ExitStack() as stack:
            if system == NONE:
                self._backend_port = port
                flags: Sequence[str] = ("--port", str(port), *delay)
                command = module_command("bench.gateway.mock_backend", *flags)
            elif system in OURS:
                store = stack.enter_context(LocalStore())
                common = ("--store", store.url, "--cluster", "bench")
                worker = module_command("bench.gateway.emulated_worker", *common, *delay)
                stack.enter_context(Process(f"{system}-worker", worker, self._folder))
                names = ("--model", self._args.model, "--model-name", MOCK_MODEL)
                flags = (*common, *names, "--http-port", str(port), *OURS[system])
                command = module_command("services.gateway", *flags)
            else:
                peer, backend = self._peers[system], f"http://127.0.0.1:{self._backend_port}"
                own = peer.arguments(backend, port, free_port(), self._folder, MOCK_MODEL)
                command = [str(peer.program(self._args.peers_dir.expanduser())), *own]
                env = peer.env
            process = stack.enter_context(Process(system, command, self._folder, env))
            url = f"http://127.0.0.1:{port}"
            ask = partial(_wrong, url, _body(system, 1, stream=False))
            await until_answers(process, ask, within=START_PATIENCE)
            yield LiveTarget(url, processes={} if system == NONE else {system: process.pid})

    async def prepare(self, system: str, target: LiveTarget, seed: int) -> None:
        """Load it for a moment."""
        await self._requests(system, target, self._args.streams, 1, _SETTLE)

    async def measure(self, system: str, target: LiveTarget, regime: str, seed: int) -> Measurement:
        """Measure answers of one token, alone and together, and streams."""
        args, each = self._args, partial(self._requests, system, target)
        alone, _ = await each(1, 1, args.seconds)
        short, short_cpu = await each(args.streams, 1, args.seconds)
        long, long_cpu = await each(args.streams, args.tokens, args.seconds)
        times = sorted(alone.times)
        figures = {
            "latency_p50": 1e3 * percentile(times, 0.5),
            "latency_p99": 1e3 * percentile(times, 0.99),
            "requests_per_s": len(short.times) / short.took,
            "tokens_per_s": len(long.times) * args.tokens / long.took,
        }
        if target.processes:
            us_per_request = 1e6 * short_cpu / len(short.times)
            further = max(1e6 * long_cpu / len(long.times) - us_per_request, 0.0)
            figures["us_per_request"] = us_per_request
            figures["us_per_token"] = further / max(args.tokens - 1, 1)
        return Measurement(figures)

    async def _requests(
        self,
        system: str,
        target: LiveTarget,
        num_open: int,
        num_tokens: int,
        seconds: float,
    ) -> tuple[Loop, float]:
        """Run a closed loop of so many requests in flight, with the gateway's CPU seconds."""
        bodies = [_body(system, num_tokens, stream=num_tokens > 1)] * num_open
        before = sum(target.cpu_seconds().values())
        loop = await run_loop(Endpoint.parse(target.url), PATH, bodies, seconds)
        return loop, sum(target.cpu_seconds().values()) - before

    def title(self, regime: str, runs: Mapping[int, Measurement]) -> str:
        """Return the sizes of the rounds."""
        args = self._args
        return (
            f"{args.streams} in flight, {args.tokens} tokens a stream, medians of {len(runs)} "
            f"rounds of {args.seconds:g} s"
        )

    def packed(self) -> Mapping[str, Any]:
        """Return the settings."""
        names = ("rounds", "seconds", "streams", "tokens", "delay_ms", "model")
        return {"config": {name: getattr(self._args, name) for name in names}}


def _body(system: str, num_tokens: int, *, stream: bool) -> bytes:
    """Return a chat request for exactly so many tokens."""
    messages = [{"role": "user", "content": PROMPT}]
    asked = {"model": MOCK_MODEL, "messages": messages, "max_tokens": num_tokens}
    if system in OURS:  # the mock backend always gives all tokens
        asked |= {"ignore_eos": True, "temperature": 0}
    return json.dumps({**asked, "stream": stream}).encode()


async def _wrong(url: str, body: bytes) -> str:
    """Return why a gateway does not answer yet; "" where it does."""
    client = Client(Endpoint.parse(url), 5.0)
    try:
        response = await client.post(PATH, body, lambda data, now: None)
    except RequestFailedError as error:
        return str(error)
    finally:
        client.close()
    said = f"HTTP {response.status} {bytes(response.body[:200])!r}"
    return "" if response.status == 200 else said
