"""An engine that queues passes: one is launched before anybody has the result of the one before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from threading import Event

from headway.core.worker.events import PassFailed
from headway.engine import PassFailure, QueueingBackend
from headway.forward_pass import ForwardPass, PassItem, PassResult
from headway.request import SamplingParams, StreamKey
from services.worker.engine_thread import EngineThread
from tests.fakes.fake_engine import FakeEngine

PATIENCE = 120.0


class QueueingEngine(FakeEngine):
    """A backend that computes a pass when its result is asked for, once the gate is open."""

    def __init__(self) -> None:
        super().__init__(num_blocks=8)
        self.launched: list[int] = []
        self.second = Event()
        self.gate = Event()

    def launch(self, forward_pass: ForwardPass) -> Callable[[], PassResult]:
        self.launched.append(forward_pass.pass_id)
        if len(self.launched) == 2:
            self.second.set()
        if not forward_pass.items:
            raise PassFailure([StreamKey("g", 9)], "nothing to compute")
        return partial(self._result, forward_pass)

    def _result(self, forward_pass: ForwardPass) -> PassResult:
        assert self.gate.wait(PATIENCE)
        return self.run(forward_pass)


def one_token(pass_id: int) -> ForwardPass:
    params = SamplingParams(max_tokens=1)
    item = PassItem(StreamKey("g", pass_id), (7,), 0, (pass_id,), True, params, (7,), ())
    return ForwardPass(pass_id, (item,))


async def test_a_pass_is_launched_while_the_one_before_runs_and_results_keep_their_order() -> None:
    engine = QueueingEngine()
    assert isinstance(engine, QueueingBackend)
    posted: asyncio.Queue[PassResult | PassFailed] = asyncio.Queue()
    thread = EngineThread(engine, posted.put_nowait)
    thread.start(one_token(1))
    thread.start(one_token(2))
    assert await asyncio.to_thread(engine.second.wait, PATIENCE)
    assert posted.empty()
    engine.gate.set()
    async with asyncio.timeout(PATIENCE):
        assert [(await posted.get()).pass_id for _ in range(2)] == [1, 2]
    thread.close()


async def test_a_launch_that_fails_is_told_after_the_pass_before_it() -> None:
    engine = QueueingEngine()
    posted: asyncio.Queue[PassResult | PassFailed] = asyncio.Queue()
    thread = EngineThread(engine, posted.put_nowait)
    thread.start(one_token(1))
    thread.start(ForwardPass(2, ()))
    assert await asyncio.to_thread(engine.second.wait, PATIENCE)
    engine.gate.set()
    async with asyncio.timeout(PATIENCE):
        first, second = await posted.get(), await posted.get()
    assert isinstance(first, PassResult)
    assert isinstance(second, PassFailed)
    assert (first.pass_id, second.pass_id, second.keys) == (1, 2, (StreamKey("g", 9),))
    thread.close()
