"""The shell's side of an engine that plans its own passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from headway.core.worker.events import EngineAbort, EngineAdd, EngineTune
from headway.engine import EngineInfo, EngineStepped, KvSink, PlanningEngine
from headway.errors import Code, HeadwayError


class PlanningLink:
    """A planning engine behind the interface that the worker has of an ``EngineThread``."""

    def __init__(self, engine: PlanningEngine, post: Callable[[EngineStepped], None]) -> None:
        self._engine = engine
        engine.start(post)

    def add(self, order: EngineAdd) -> None:
        """Let the engine serve a request."""
        self._engine.add(order.request, order.priority)

    def abort(self, order: EngineAbort) -> None:
        """Let the engine stop a request."""
        self._engine.abort(order.key)

    def tune(self, order: EngineTune) -> None:
        """Tell the engine γ."""
        self._engine.tune(order.gamma)

    async def watch(self, least: float) -> None:
        """End the process when the engine hangs."""
        await self._engine.watch(least)

    async def stop(self) -> None:
        """Stop the engine."""
        await self._engine.close()


class NoKv:
    """The KV of an engine that shows none."""

    def __init__(self, info: EngineInfo) -> None:
        self.info = info

    def kv_shape(self, num_blocks: int) -> tuple[int, ...]:
        """Raise HeadwayError."""
        raise _no_kv()

    def read_kv(self, block_ids: Sequence[int], *, from_host: bool = False) -> Iterator[memoryview]:
        """Raise HeadwayError."""
        raise _no_kv()

    def kv_writer(
        self,
        block_ids: Sequence[int],
        shape: Sequence[int],
        dtype: str,
        num_tokens: int,
        *,
        first_token: int = 0,
        to_host: bool = False,
    ) -> KvSink:
        """Raise HeadwayError."""
        raise _no_kv()


def _no_kv() -> HeadwayError:
    return HeadwayError(Code.FAILED_PRECONDITION, "this worker's engine sends and takes no KV")
