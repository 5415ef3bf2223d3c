"""A service that does nothing, or what ``--trouble`` says; run by the tests of the runtime."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Literal

from headway.errors import Code, HeadwayError
from services.runtime.config import ServiceConfig, load_config
from services.runtime.essential import essential
from services.runtime.service import Runtime, run_service


class TinyConfig(ServiceConfig):
    """The trouble it makes."""

    trouble: Literal["", "refuse", "crash", "slow-start", "slow-drain", "stray", "task", "hang"] = (
        ""
    )


class TinyService:
    def __init__(self, runtime: Runtime[TinyConfig]) -> None:
        self._runtime = runtime
        self._trouble = runtime.config.trouble

    def member(self) -> Mapping[str, Any]:
        return {"role": "tiny", "detail": {"said": "so"}}

    async def start(self) -> None:
        if self._trouble == "refuse":
            raise HeadwayError(Code.NOT_FOUND, "no such model: give another --model")
        if self._trouble == "crash":
            raise ZeroDivisionError("a bug")
        if self._trouble == "slow-start":
            self._runtime.log.info("loading")
            await asyncio.to_thread(time.sleep, 3600)
        if self._trouble == "stray":
            asyncio.get_running_loop().call_soon(lambda: [][0])
        if self._trouble == "hang":
            asyncio.get_running_loop().call_later(0.5, time.sleep, 3600)
        if self._trouble == "task":
            essential(self._fail(), "the task it lives by")

    async def _fail(self) -> None:
        while self._runtime.lease is None:
            await asyncio.sleep(0.01)
        raise ZeroDivisionError("a bug")

    async def drain(self) -> None:
        if self._trouble == "slow-drain":
            await asyncio.sleep(3600)

    async def stop(self) -> None:
        self._runtime.log.info("let_go")


async def build(runtime: Runtime[TinyConfig]) -> TinyService:
    return TinyService(runtime)


if __name__ == "__main__":
    run_service(load_config(TinyConfig), build)
