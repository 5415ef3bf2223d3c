"""A plain ``vllm serve`` as a process of its own, in this Python's environment."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.runner.processes import Process, until_ok
from bench.runner.started import LiveTarget
from services.local.store import free_port

START = 400.0  # seconds in which a server must answer
BLOCK_SIZE = 32  # tokens of a KV block, as vLLM's CPU attention wants them


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The limits that all engines of a comparison share, in requests, tokens and GiB."""

    max_running: int
    chunk_tokens: int = 512
    kv_cache_gib: float = 0.25
    num_threads: int = 1
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Server:
    """A plain vLLM: its model, the limits, and what it is given beyond them.

    ``python``: that of its environment.
    """

    model: str
    limits: EngineLimits
    flags: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable

    def command(self, port: int) -> list[str]:
        """Return what starts it: the module behind ``vllm serve``, which every build has."""
        limits = self.limits
        return [
            *(self.python, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", self.model, "--served-model-name", Path(self.model).name),
            *("--host", "127.0.0.1", "--port", str(port), "--dtype", limits.dtype),
            *("--block-size", str(BLOCK_SIZE), "--max-num-seqs", str(limits.max_running)),
            *("--max-num-batched-tokens", str(limits.chunk_tokens), "--enforce-eager"),
            *("--kv-cache-memory-bytes", str(int(limits.kv_cache_gib * 2**30))),
            *("--generation-config", "vllm", *self.flags),
        ]

    def variables(self) -> Mapping[str, str]:
        """Return its environment, beyond this process's."""
        return {
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(self.limits.num_threads),
            "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
            **self.environment,
        }


@asynccontextmanager
async def serving(server: Server, folder: Path, name: str) -> AsyncIterator[LiveTarget]:
    """Run it, and yield it once it answers; UNAVAILABLE where it does not in time."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = Process(name, server.command(port), folder, server.variables())
    try:
        await until_ok(process, f"{url}/v1/models", within=START)
        yield LiveTarget(url, processes={name: process.pid})
    finally:
        await asyncio.to_thread(process.stop, 20.0)
