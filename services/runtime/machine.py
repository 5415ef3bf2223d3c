"""What a process has of its machine besides time: dice, threads, and a way to the store."""

from __future__ import annotations

import os
import secrets
from concurrent.futures import Executor, ThreadPoolExecutor

from services.runtime.clock import Clock
from services.runtime.config import ServiceConfig
from services.runtime.store import Store


class Machine:
    """The machine under a service; a proof gives its own, on virtual time."""

    def pid(self) -> int:
        """Return the process's id, by which its supervisor knows it."""
        return os.getpid()

    def clock(self, error: float) -> Clock:
        """Return a clock that is ``error`` seconds ahead."""
        return Clock(error)

    async def connect(self, config: ServiceConfig) -> Store:
        """Return a connection to the store; HeadwayError as ``Store.connect`` raises it."""
        return await Store.connect(config.store, config.cluster)

    def draw(self, num_bytes: int) -> bytes:
        """Return bytes that nobody can guess."""
        return secrets.token_bytes(num_bytes)

    def thread(self, name: str) -> Executor:
        """Return an executor of one thread."""
        return one_thread(name)


def one_thread(name: str) -> Executor:
    """Return an executor of one thread of this name."""
    return ThreadPoolExecutor(1, name)
