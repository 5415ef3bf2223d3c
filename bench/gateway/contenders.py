"""The processes behind each figure: ours with its emulated worker, peers with the mock backend."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from bench.cluster.processes import Process, until_answers
from bench.gateway.peers import PeerGateway
from bench.serve.client import Client, Endpoint, RequestFailedError
from services.local.store import LocalStore, free_port
from services.runtime.rooms import module_command

PATH = "/v1/chat/completions"
PROMPT = "Add 17, 25, 8, 41, 3, 77, 12."
START_PATIENCE = 90.0
MOCK_MODEL = "headway-mini"


OURS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "headway": ("--log-level", "error"),
        "headway-logged": ("--log-level", "info"),
        "headway-bare": ("--log-level", "error", "--num-lives", "0", "--no-access-log"),
    }
)
"""Our gateway by name: lives but no log, both, and neither."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A gateway that serves; ``process`` is None for the backend without any."""

    name: str
    endpoint: Endpoint
    model: str
    process: Process | None = None

    def body(self, num_tokens: int, *, stream: bool) -> bytes:
        """Return a chat request for exactly so many tokens."""
        messages = [{"role": "user", "content": PROMPT}]
        asked = {"model": self.model, "messages": messages, "max_tokens": num_tokens}
        if self.name in OURS:  # the mock backend always gives all tokens
            asked |= {"ignore_eos": True, "temperature": 0}
        return json.dumps({**asked, "stream": stream}).encode()


class GatewayProcesses:
    """Starts contenders; everything ends with ``stack``."""

    def __init__(self, stack: ExitStack, folder: Path, delay_ms: float) -> None:
        self._stack = stack
        self._folder = folder
        self._delay = ("--delay-ms", str(delay_ms))

    async def backend(self) -> Contender:
        """Return the mock backend, asked directly."""
        port = free_port()
        flags = ("--port", str(port), *self._delay)
        process = self._start("mock-backend", "bench.gateway.mock_backend", *flags)
        contender = Contender("none", _loopback(port), MOCK_MODEL)
        await self._until_it_answers(contender, process)
        return contender

    async def headway(self, model: str, name: str = "headway") -> Contender:
        """Our gateway (``OURS``) with a store and an emulated scheduler and worker of its own."""
        store = self._stack.enter_context(LocalStore())
        port = free_port()
        common = ("--store", store.url, "--cluster", "bench")
        self._start(f"{name}-worker", "bench.gateway.emulated_worker", *common, *self._delay)
        flags = (*common, "--model", model, "--model-name", MOCK_MODEL, "--http-port", str(port))
        process = self._start(name, "services.gateway", *flags, *OURS[name])
        contender = Contender(name, _loopback(port), MOCK_MODEL, process)
        await self._until_it_answers(contender, process)
        return contender

    async def peer(self, peer: PeerGateway, backend: Contender, peers_dir: Path) -> Contender:
        """Another's gateway before the mock backend."""
        url = f"http://127.0.0.1:{backend.endpoint.port}"
        port = free_port()
        arguments = peer.arguments(url, port, free_port(), self._folder, MOCK_MODEL)
        command = [str(peer.program(peers_dir)), *arguments]
        process = self._stack.enter_context(Process(peer.name, command, self._folder, peer.env))
        contender = Contender(peer.name, _loopback(port), MOCK_MODEL, process)
        await self._until_it_answers(contender, process)
        return contender

    def _start(self, name: str, module: str, *flags: str) -> Process:
        process = Process(name, module_command(module, *flags), self._folder)
        return self._stack.enter_context(process)

    async def _until_it_answers(self, contender: Contender, process: Process) -> None:
        client = Client(contender.endpoint, 5.0)
        body = contender.body(1, stream=False)

        async def ask() -> str:
            try:
                response = await client.post(PATH, body, lambda data, now: None)
            except RequestFailedError as error:
                return str(error)
            said = f"HTTP {response.status} {bytes(response.body[:200])!r}"
            return "" if response.status == 200 else said

        await until_answers(process, ask, within=START_PATIENCE)
        client.close()


def _loopback(port: int) -> Endpoint:
    return Endpoint("127.0.0.1", port, "", tls=False)
