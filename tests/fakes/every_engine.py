"""Every engine by name, as a worker loads it, and what each draws."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from headway.engine import PlanningEngine
from services.worker.config import WorkerConfig
from services.worker.engines import MOVES_NO_KV, Engine, find_engine
from tests.fakes.fake_engine import load_fake
from tests.fakes.openai_endpoint import OpenAIEndpoint, openai_endpoint
from tests.fakes.worker_service import MODEL

NUM_BLOCKS = 80


@dataclass
class EngineUnderTest:
    """An engine's options, and how a worker gets it."""

    name: str
    load: Callable[[WorkerConfig], Engine]
    num_blocks: int = 160
    options: dict[str, Any] = field(default_factory=dict)
    endpoint: OpenAIEndpoint | None = None
    """The endpoint behind it, if that computes."""

    @property
    def moves_kv(self) -> bool:
        return self.name not in MOVES_NO_KV

    def holds(self) -> None:
        """Let a request that has begun go on for as long as it takes to cancel it."""
        if self.endpoint is not None:
            self.endpoint.goes_on.clear()


@contextmanager
def engine_under_test(name: str) -> Iterator[EngineUnderTest]:
    """The engine, until the end of a module's tests; what takes long to load is loaded once."""
    if name == "fake":
        yield EngineUnderTest(name, load_fake)
    elif name == "openai":
        with openai_endpoint() as endpoint:
            options = {"engine": name, "engine_args": {"url": endpoint.url}}
            yield EngineUnderTest(name, find_engine(name), 200, options, endpoint)
            endpoint.goes_on.set()
    elif name == "torch":
        yield EngineUnderTest(name, find_engine(name))
    else:
        yield from _loaded_once(name)


def _loaded_once(name: str) -> Iterator[EngineUnderTest]:
    options: dict[str, Any] = {"engine": name, "num_blocks": NUM_BLOCKS, "max_model_len": 1024}
    if name == "vllm" and os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1":
        options["async_scheduling"] = True  # passes begin behind others
    engine: Any = find_engine(name)(
        WorkerConfig(service_id="w", model=str(MODEL), num_threads=1, dtype="float32", **options)
    )
    last = "release" if isinstance(engine, PlanningEngine) else "close"
    release = getattr(engine, last)
    setattr(engine, last, lambda: None)  # the worker of the next test takes it over
    try:
        yield EngineUnderTest(name, lambda config: engine, NUM_BLOCKS, options)
    finally:
        release()
