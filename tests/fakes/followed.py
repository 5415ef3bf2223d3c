"""An engine that plans its own passes, and everything that it reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from headway.engine import Drawn, EngineStepped, PlanningEngine
from headway.request import Request

PATIENCE = 300.0

E = TypeVar("E", bound=PlanningEngine)


class Followed(Generic[E]):
    """It starts at once, and closes where its context ends."""

    def __init__(self, engine: E) -> None:
        self.engine = engine
        self.steps: list[EngineStepped] = []
        engine.start(self.steps.append)

    async def __aenter__(self) -> Followed[E]:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.engine.close()

    @property
    def drawn(self) -> list[Drawn]:
        return [drawn for step in self.steps for drawn in step.drawn]

    @property
    def tokens(self) -> list[int]:
        return [token for drawn in self.drawn for token in drawn.token_ids]

    @property
    def ends(self) -> list[Drawn]:
        return [drawn for drawn in self.drawn if drawn.finish_reason is not None]

    def of(self, number: int) -> list[Drawn]:
        return [drawn for drawn in self.drawn if drawn.key.stream_id == number]

    def outputs(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for drawn in self.drawn:
            found.setdefault(drawn.key.stream_id, []).extend(drawn.token_ids)
        return found

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not holds():
                await asyncio.sleep(0.01)

    async def end(self) -> Drawn:
        await self.until(lambda: bool(self.ends))
        return self.ends[0]

    async def serve(self, *requests: Request) -> dict[int, list[int]]:
        for request in requests:
            self.engine.add(request, 0)
        await self.until(lambda: len(self.ends) == len(requests))
        return self.outputs()
