"""Whatever workers, streams and schedulers do, a client sees tokens 0 … n once, and one end."""

from __future__ import annotations

import zlib
from collections import deque
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.cluster import Role
from headway.core.gateway.core import GatewayCore
from headway.core.gateway.events import (
    CancelTokens,
    Deliver,
    Fail,
    GatewayAction,
    GatewayEvent,
    Release,
    SchedulerConnected,
    SchedulerDisconnected,
    Submit,
    WorkerDetached,
    WorkersMissing,
)
from headway.core.gateway.settings import GatewaySettings
from headway.core.gateway.state import StreamStage
from headway.core.gateway.streams import TRANSITIONS, StreamEvent
from headway.errors import Code
from headway.messages import CancelStream, Lost, Placed, StreamFailure, TokenBatch
from headway.request import FinishReason, Request, SamplingParams, StreamKey

WORKERS = ("w0", "w1", "w2")
ON_WORKERS = (StreamStage.RUNNING, StreamStage.LACKING, StreamStage.ORPHANED)
FAULTS = ["skip", "repeat", "copy", "lost", "detach", "fail", "cut", "connect", "forge", "lack"]
KINDS = [*["pass"] * 3, *["hear"] * 3, *FAULTS, "submit", "release", "time"]
STEPS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 7), st.integers(0, 2)), max_size=80
)


def token_of(request_id: str, index: int) -> int:
    """Generation is a pure function of the request and the position."""
    return int(request_id) * 1000 + index


def token_after(output: list[int], salt: int) -> int:
    """A token that tells which tokens it was computed from; copies draw differently."""
    return zlib.crc32(repr((output, salt)).encode()) * 8 + salt % 8


@dataclass
class Copy:
    """An attempt that a worker computes."""

    request: Request
    worker_id: str
    next_index: int


@dataclass
class World:
    """Workers and a scheduler that do what they are told, or fail to; and the clients."""

    core: GatewayCore
    now: float = 0.0
    copies: list[Copy] = field(default_factory=list)
    seen: dict[str, list[int]] = field(default_factory=dict)
    ends: dict[str, list[str]] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    words: deque[Placed] = field(default_factory=deque)  # of the scheduler, on their way

    def hear(self) -> None:
        """The scheduler's next word on who computes what; tokens may have overtaken it."""
        if self.words:
            self.tell(self.words.popleft())

    def tell(self, event: GatewayEvent) -> None:
        self.perform(list(self.core.handle(event, now=self.now)))
        self.check()

    def wake(self) -> None:
        self.perform(list(self.core.wake(now=self.now)))
        self.check()

    def check(self) -> None:
        """What a stream has is what its stage says."""
        for state in self.core.streams.requests:
            assert state.stage is not StreamStage.NEW
            has_worker = state.stage in ON_WORKERS
            assert bool(state.worker_id) is bool(state.sources) is has_worker
            if state.stage is not StreamStage.ORPHANED:
                assert bool(state.early) is (state.stage is StreamStage.LACKING)

    def perform(self, actions: list[GatewayAction]) -> None:
        for action in actions:
            match action:
                case Request():
                    start = len(action.output_token_ids)
                    assert list(action.output_token_ids) == self.seen[action.request_id]
                    worker_id = WORKERS[action.stream_id % 3]
                    self.copies.append(Copy(action, worker_id, start))
                    self.words.append(Placed(action.key, worker_id, 0, Role.UNIFIED))
                case CancelStream(key):
                    self.drop({key.stream_id})
                case CancelTokens(_, stream_ids):
                    self.drop(set(stream_ids))
                case Deliver(deliveries):
                    for request_id, token_id, _, reason, *_ in deliveries:
                        assert not self.ends[request_id]
                        if token_id is not None:
                            self.seen[request_id].append(token_id)
                        if reason is not None:
                            self.ends[request_id].append(reason.value)
                case Fail(request_id, error):
                    self.ends[request_id].append(error.code.value)

    def drop(self, stream_ids: set[int]) -> None:
        self.copies = [c for c in self.copies if c.request.stream_id not in stream_ids]

    def forward(self, copy: Copy, index: int, *, moves: bool = True) -> None:
        """One token of one copy, the last one with its finish reason."""
        end = copy.request.sampling.max_tokens
        if index >= end:
            return
        reason = FinishReason.LENGTH if index == end - 1 else None
        if moves:
            copy.next_index = index + 1
        token_id = token_of(copy.request.request_id, index)
        stream_id = copy.request.stream_id
        self.tell(TokenBatch(copy.worker_id, [stream_id], [index], [token_id], [reason], {}))

    def step(self, kind: str, which: int, worker: int) -> None:
        copy = self.copies[which % len(self.copies)] if self.copies else None
        if kind == "submit":
            name = str(len(self.seen))
            self.seen[name], self.ends[name] = [], []
            self.asked[name] = 1 + which
            sampling = SamplingParams(max_tokens=1 + which)
            self.tell(Submit(Request(name, "m", (1,), sampling, self.now)))
        elif kind == "cut":
            self.tell(SchedulerDisconnected())
        elif kind == "connect":
            self.tell(SchedulerConnected())
        elif kind == "lack":
            self.tell(WorkersMissing({"m": "no worker decodes"} if worker else {}))
        elif kind == "time":
            self.now += 0.6
            self.wake()
        elif kind == "release":
            self.release(str(which))
        elif kind == "hear":
            self.hear()
        elif kind == "detach":
            self.tell(WorkerDetached(WORKERS[worker]))
        elif copy is not None:
            self.step_copy(kind, copy, WORKERS[worker])

    def release(self, name: str) -> None:
        if name in self.ends and not self.ends[name]:
            self.ends[name].append("released")
            self.tell(Release(name))

    def step_copy(self, kind: str, copy: Copy, worker_id: str) -> None:
        key = StreamKey("g", copy.request.stream_id)
        match kind:
            case "pass":
                self.forward(copy, copy.next_index)
            case "skip":
                self.forward(copy, copy.next_index + 1)
            case "repeat":
                self.forward(copy, max(0, copy.next_index - 1), moves=False)
            case "copy":  # a second worker computes the same attempt from where it stood
                self.copies.append(Copy(copy.request, worker_id, copy.next_index))
                self.words.append(Placed(key, copy.worker_id, 0, Role.UNIFIED, worker_id))
            case "lost":
                self.copies.remove(copy)
                self.tell(Lost((key,), "killed"))
            case "forge":  # by a worker that never had it and knows its name all the same
                self.forge(key.stream_id, copy.next_index)
            case "fail":
                failure = StreamFailure(key.stream_id, FinishReason.CANCELLED, "dropped")
                self.tell(TokenBatch(copy.worker_id, [], [], [], [], {}, [failure]))

    def forge(self, stream_id: int, index: int) -> None:
        """A token, an end and a failure, none of them true."""
        ids, at, end = [stream_id] * 2, max(0, index), FinishReason.STOP
        failure = StreamFailure(stream_id, FinishReason.ERROR, "forged")
        self.tell(TokenBatch("evil", ids, [at, at + 1], [666, 667], [None, end], {}, [failure]))

    def settle(self) -> None:
        """Everything works from now on: what is open comes to its end."""
        self.tell(SchedulerConnected())
        self.tell(WorkersMissing({}))
        for _ in range(400):
            if not self.core.num_open:
                return
            while self.words:
                self.hear()
            for copy in list(self.copies):
                self.forward(copy, copy.next_index)
            self.now += 0.5
            self.wake()
        raise AssertionError("a request never ended")


def test_every_stage_is_left_and_every_event_happens() -> None:
    assert {stage for stage, _ in TRANSITIONS} == set(StreamStage)
    assert {event for _, event in TRANSITIONS} == set(StreamEvent)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_every_admitted_request_is_seen_whole_and_ends_once(
    steps: list[tuple[str, int, int]],
) -> None:
    limits = GatewaySettings(
        max_model_len=100, request_timeout=1000.0, max_failures=100, max_deaths=1000
    )
    world = World(GatewayCore("g", "g:1", limits))
    world.tell(SchedulerConnected())
    for kind, which, worker in [("submit", 5, 0), ("submit", 2, 0), *steps]:
        world.step(kind, which, worker)
    world.settle()
    for name, ends in world.ends.items():
        assert len(ends) == 1
        expected = [token_of(name, i) for i in range(world.asked[name])]
        whole = ends[0] == "length"
        assert world.seen[name] == expected[: None if whole else len(world.seen[name])]
        assert ends[0] in ("length", "released", Code.UNAVAILABLE.value)
    assert world.core.num_waiting == 0


@dataclass
class SampledCopy:
    """An attempt that a worker computes, with what it has drawn itself."""

    request: Request
    worker_id: str
    output: list[int]
    salt: int


class SamplingWorld(World):
    """Copies of one attempt draw different tokens; each worker's tokens travel on its own link."""

    def __init__(self, core: GatewayCore) -> None:
        super().__init__(core)
        self.running: list[SampledCopy] = []
        self.links: dict[str, deque[TokenBatch]] = {worker_id: deque() for worker_id in WORKERS}

    def perform(self, actions: list[GatewayAction]) -> None:
        super().perform(actions)
        for copy in self.copies:
            output = list(copy.request.output_token_ids)
            salt = copy.request.stream_id
            self.running.append(SampledCopy(copy.request, copy.worker_id, output, salt))
        self.copies.clear()

    def drop(self, stream_ids: set[int]) -> None:
        super().drop(stream_ids)
        self.running = [c for c in self.running if c.request.stream_id not in stream_ids]

    def sample(self, copy: SampledCopy) -> None:
        """One more token, on its way to the gateway."""
        end, index = copy.request.sampling.max_tokens, len(copy.output)
        if index >= end:
            return
        copy.output.append(token_after(copy.output, copy.salt))
        reason = FinishReason.LENGTH if index == end - 1 else None
        stream_ids = [copy.request.stream_id]
        tokens = TokenBatch(copy.worker_id, stream_ids, [index], copy.output[-1:], [reason], {})
        self.links[copy.worker_id].append(tokens)

    def deliver(self, worker_id: str) -> None:
        if self.links[worker_id]:
            self.tell(self.links[worker_id].popleft())

    def act(self, kind: str, which: int, worker_id: str) -> None:
        copy = self.running[which % len(self.running)] if self.running else None
        if kind == "deliver":
            self.deliver(worker_id)
        elif kind == "hear":
            self.hear()
        elif copy is not None and kind == "forge":
            self.forge(copy.request.stream_id, which)
        elif copy is not None and kind == "sample":
            self.sample(copy)
        elif copy is not None and copy.worker_id != worker_id and self.is_alone(copy):
            salt = copy.salt + len(self.running) + 1
            self.running.append(SampledCopy(copy.request, worker_id, list(copy.output), salt))
            key = copy.request.key
            self.words.append(Placed(key, copy.worker_id, 0, Role.UNIFIED, worker_id))
            if kind == "move":
                self.running.remove(copy)
                self.words.append(Placed(key, worker_id, 0, Role.UNIFIED))

    def is_alone(self, copy: SampledCopy) -> bool:
        """True of the only copy, while it has tokens to come: nothing moves that has ended."""
        if len(copy.output) == copy.request.sampling.max_tokens:
            return False
        return sum(c.request.stream_id == copy.request.stream_id for c in self.running) == 1

    def is_coherent(self, name: str) -> bool:
        """True if every token was drawn after exactly those that the client read before it."""
        seen = self.seen[name]
        return all(
            any(token_after(seen[:index], salt) == token for salt in range(200))
            for index, token in enumerate(seen)
        )

    def rest(self) -> None:
        for _ in range(400):
            if not self.core.num_open:
                return
            while self.words:
                self.hear()
            for copy in list(self.running):
                self.sample(copy)
            for worker_id in WORKERS:
                while self.links[worker_id]:
                    self.deliver(worker_id)
            self.now += 0.5
            self.wake()
        raise AssertionError("a request never ended")


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["sample", "sample", "deliver", "deliver", "hear", "move", "copy", "forge"]
            ),
            st.integers(0, 7),
            st.sampled_from(WORKERS),
        ),
        max_size=80,
    )
)
def test_copies_that_draw_differently_are_never_spliced(steps: list[tuple[str, int, str]]) -> None:
    limits = GatewaySettings(
        max_model_len=100, request_timeout=1000.0, max_attempts=1000, max_deaths=1000
    )
    world = SamplingWorld(GatewayCore("g", "g:1", limits))
    world.tell(SchedulerConnected())
    world.step("submit", 7, 0)
    world.step("submit", 5, 0)
    for kind, which, worker_id in steps:
        world.act(kind, which, worker_id)
    world.rest()
    for name, num_tokens in world.asked.items():
        assert world.ends[name] == ["length"]
        assert len(world.seen[name]) == num_tokens
        assert world.is_coherent(name)
