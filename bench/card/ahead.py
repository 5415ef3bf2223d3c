"""The worker's core, its driver and its engine's thread in one process, without a network."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.engine.loop import greedy, worker_of
from headway.core.worker.core import WorkerCore, WorkerSettings
from headway.core.worker.events import PassFailed, SendTokens
from headway.engine import Backend
from headway.forward_pass import ForwardPass, PassResult
from headway.policies import registry
from services.runtime.clock import Clock
from services.runtime.driver import Driver
from services.worker.engine_thread import EngineThread

_VOCABULARY = 90


def random_prompts(count: int, num_tokens: int, seed: int) -> list[list[int]]:
    """Return prompts of so many tokens."""
    rng = random.Random(seed)
    return [rng.choices(range(_VOCABULARY), k=num_tokens) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class DrivenRun:
    """Seconds from one decode pass's tokens to the next, and how many of them no pass ran."""

    seconds_per_pass: float
    seconds_between: float


class DrivenEngine:
    """A unified worker of one unit; ``plans_ahead`` is its ``--async-scheduling``. Close it."""

    def __init__(self, backend: Backend, plans_ahead: bool) -> None:
        info = worker_of(backend.info, 8192)
        settings = WorkerSettings(watermark=0.0, prefix_caching=False, runs_ahead=plans_ahead)
        core = WorkerCore(info, (), registry.make("batching", "sarathi"), settings)
        self._thread = EngineThread(backend, self._ended)
        self._driver = Driver(core, self._perform, Clock())
        self._num_seen = 0
        self._left = 0
        self._done = asyncio.Event()
        self._failure = ""
        self._outputs: dict[int, list[int]] = {}
        self._passes: list[tuple[float, float]] = []

    async def generate(self, batch: int, num_prompt: int, num_tokens: int) -> DrivenRun:
        """Generate for ``batch`` requests at once, greedily; RuntimeError where a pass fails."""
        return await self.answer(random_prompts(batch, num_prompt, self._num_seen), num_tokens)

    async def answer(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> DrivenRun:
        """Answer these prompts at once, greedily; ``outputs`` has the tokens of each."""
        first, batch = self._num_seen, len(prompts)
        self._num_seen += batch
        self._outputs = {first + n: [] for n in range(batch)}
        self._left, self._passes = batch * num_tokens, []
        self._done.clear()
        self._driver.post(greedy(prompts, num_tokens, first))
        await self._done.wait()
        if self._failure:
            raise RuntimeError(self._failure)
        return self._timed(num_tokens)

    @property
    def outputs(self) -> list[list[int]]:
        """Return the tokens of the last answers, in the order of their prompts."""
        return list(self._outputs.values())

    def close(self) -> None:
        """Stop its thread; the backend goes on."""
        self._driver.close()
        self._thread.end_passes()

    def _timed(self, num_tokens: int) -> DrivenRun:
        """Time the last passes: those before them computed prompts."""
        passes = self._passes[-(num_tokens - 1) :]
        ends = [end for end, _ in passes]
        num = max(1, len(passes) - 1)
        whole = (ends[-1] - ends[0]) / num
        return DrivenRun(whole, max(0.0, whole - sum(took for _, took in passes[1:]) / num))

    def _perform(self, action: object) -> None:
        if isinstance(action, ForwardPass):
            self._thread.start(action)
        elif isinstance(action, SendTokens):
            batch = action.batch
            for stream_id, token in zip(batch.stream_ids, batch.token_ids, strict=True):
                self._outputs[stream_id].append(token)
            self._left -= len(batch.token_ids)
            if self._left <= 0:
                self._done.set()

    def _ended(self, result: PassResult | PassFailed) -> None:
        if isinstance(result, PassFailed):
            self._failure = result.message
            self._done.set()
            return
        self._passes.append((time.perf_counter(), result.pass_time))
        self._driver.post(result)
