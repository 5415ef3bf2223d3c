"""A worker whose first pass hangs; run by the tests of the worker."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

from headway.forward_pass import ForwardPass
from services.runtime.config import load_config
from services.runtime.service import Runtime, run_service
from services.worker import engine_thread, servicer
from services.worker.config import WorkerConfig
from tests.fakes.fake_engine import load_fake


def hang(forward_pass: ForwardPass) -> Any:
    time.sleep(3600)


def load(config: WorkerConfig) -> Any:
    engine = load_fake(config)
    engine.run = hang  # type: ignore[method-assign]
    return engine


async def build(runtime: Runtime[WorkerConfig]) -> servicer.WorkerServicer:
    found = await servicer.build(runtime, load)
    start = found.start

    async def start_and_hang() -> None:
        await start()
        engine = found._loaded._engine
        assert isinstance(engine, engine_thread.EngineThread)
        begin = partial(engine.start, ForwardPass(1, ()))
        asyncio.get_running_loop().call_later(0.1, begin)

    found.start = start_and_hang  # type: ignore[method-assign]
    return found


if __name__ == "__main__":
    engine_thread._FIRST_PASS = 1.0
    run_service(load_config(WorkerConfig), build)
