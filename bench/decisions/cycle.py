"""Two whole decisions: a cycle of the scheduler's core, as live, and a worker's plan of a pass."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from headway.cluster import Role, UnitLoad, WorkerInfo
from headway.core.scheduler.core import SchedulerCore
from headway.core.scheduler.events import (
    Elected,
    GatewayConnected,
    Persist,
    SchedulerAction,
    SchedulerEvent,
    SendToWorker,
    WorkerReported,
)
from headway.core.scheduler.settings import SchedulerSettings
from headway.core.worker.flight import Share
from headway.core.worker.planner import Limits, PassPlanner
from headway.core.worker.settings import WorkerSettings
from headway.core.worker.state import WorkerState
from headway.forward_pass import Sampled
from headway.messages import Accepted, Dispatch, EndForward, FinishedRequest, Snapshot
from headway.policies import registry
from headway.request import FinishReason, Request, SamplingParams

_CHUNK, _BLOCK, _PASS_TIME = 3072, 16, 0.1


def cycles(scale: float) -> tuple[str, Callable[[], Callable[[], object]]]:
    """Make an instance, whose passes each compute what the last cycle gave it."""
    num_requests, num_units = int(100 * scale), int(64 * scale)
    cycle = _Cycle(num_requests, num_units)
    size = f"{num_requests} requests, {num_units} DP units"
    return size, lambda: partial(cycle.run, cycle.arrivals())


class _Cycle:
    """``run`` is one cycle: requests arrive while a pass runs, it ends, they are dispatched."""

    def __init__(self, num_requests: int, num_units: int) -> None:
        self._num_requests = num_requests
        self._rng = random.Random(1)
        self._now = 1000.0
        self._core = SchedulerCore(SchedulerSettings(persists=True))
        self._loads = tuple(UnitLoad(unit, 0, 0, 0, 10_000) for unit in range(num_units))
        self._sent: Dispatch | None = None
        self._num_submitted = 0
        info = WorkerInfo(
            "worker", "w:1", Role.UNIFIED, "m", num_units, _CHUNK, _BLOCK, 10_000, 32_768, 8
        )
        self._tell(Elected(1, ("worker",)))
        self._tell(GatewayConnected("gateway"))
        self._tell(WorkerReported("worker", Snapshot(info, self._loads)))
        self.run(self.arrivals())

    def arrivals(self) -> list[Request]:
        """Return requests as a gateway submits them."""
        return [self._request() for _ in range(self._num_requests)]

    def _request(self) -> Request:
        self._num_submitted += 1
        return Request(
            request_id=f"request-{self._num_submitted}",
            attempt=0,
            stream_id=self._num_submitted,
            gateway_id="gateway",
            gateway_address="g:1",
            model="m",
            prompt_token_ids=range(1, 2 + int(2000 * self._rng.betavariate(1, 2))),
            sampling=SamplingParams(max_tokens=100),
            arrival_at=self._now,
            deadline_at=self._now + 600.0,
        )

    def run(self, arrivals: Sequence[Request]) -> int:
        """Return bytes of the journal; they leave in one write."""
        from services.scheduler.records import pack_key, pack_learned, pack_request

        actions: list[SchedulerAction] = []
        for request in arrivals:
            actions += self._tell(request)
        self._now += _PASS_TIME
        actions += self._tell(WorkerReported("worker", self._end()))
        assert self._sent is not None, "whoever waits is dispatched when a pass ends"
        actions += self._tell(WorkerReported("worker", Accepted(self._sent.dispatch_id)))
        persists = [action for action in actions if isinstance(action, Persist)]
        saved = {each.key: each for persist in persists for each in persist.saved}
        packed = [(pack_key(each.key), pack_request(each)) for each in saved.values()]
        packed += [(pack_key(key), b"") for persist in persists for key in persist.ended]
        learned = [pack_learned(each) for persist in persists for each in persist.learned]
        return sum(len(name) + len(blob) for name, blob in packed) + sum(map(len, learned))

    def _end(self) -> EndForward:
        """End the pass, and with it all that was in it."""
        sent = self._sent
        if sent is None:
            return EndForward(1, _PASS_TIME, (), self._loads)
        ended = [
            FinishedRequest(r.key, batch.unit, r.num_tokens, 1, FinishReason.STOP)
            for batch in sent.batches
            for r in batch.requests
        ]
        ids = (sent.dispatch_id,)
        return EndForward(1, _PASS_TIME, ids, self._loads, finished=tuple(ended))

    def _tell(self, event: SchedulerEvent) -> Sequence[SchedulerAction]:
        actions = self._core.handle(event, now=self._now)
        for action in actions:
            if isinstance(action, SendToWorker) and isinstance(action.message, Dispatch):
                self._sent = action.message
        return actions


NUM_RUNNING = 256
PROMPT_TOKENS = 1000


def planning(scale: float) -> tuple[str, Callable[[], Callable[[], object]]]:
    """Plan from the order to the items, with the blocks that requests grow into."""
    num_running = int(NUM_RUNNING * scale)
    num_blocks = num_running * 2 * PROMPT_TOKENS // _BLOCK
    most = num_running * PROMPT_TOKENS
    info = WorkerInfo("w", "w", Role.UNIFIED, "m", 1, most, _BLOCK, num_blocks, most, 1)
    state = WorkerState(info, (), WorkerSettings(prefix_caching=True))
    planner = PassPlanner(registry.make("batching", "headway"), Limits(0.1))
    for number in range(num_running):
        state.queue(_request(number), 0)

    shares = planner.plan(state.units[0], now=0.0)

    def decide() -> None:
        nonlocal shares
        shares = planner.plan(state.units[0], now=0.0)

    def decision() -> Callable[[], object]:
        _carry_out(state, shares)
        return decide

    return f"{num_running} running requests", decision


def _request(number: int) -> Request:
    prompt = tuple(range(number, number + PROMPT_TOKENS))
    sampling = SamplingParams(max_tokens=PROMPT_TOKENS)
    return Request(str(number), "m", prompt, sampling, float(number), 0, number, "gateway", "g")


def _carry_out(state: WorkerState, items: list[Share]) -> None:
    for item, sequence in items:
        sequence.computed(len(item.token_ids))
        state.drew(sequence, Sampled(item.key, 1), now=0.0, step=0.0)
