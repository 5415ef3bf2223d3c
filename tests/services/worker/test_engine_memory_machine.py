"""Whatever memory does to a request, it generates what it would have generated alone.

Two workers with real pools and a real, tiny model: requests come, share prefixes, are preempted,
wait in host memory, move in rounds, are cancelled. Blocks and host memory are all there at the end.
"""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headway.messages import CancelStream, Dispatch, Handoff, UnitBatch
from headway.request import Request, SamplingParams, StreamKey
from services.worker.engine.backend import TorchBackend
from tests.fakes.engine_rig import load, prompt, reference_output
from tests.fakes.memory_rig import MODEL, Client, EngineWorker, run_alone
from tests.fakes.requests import a_request

PREFIX = prompt(17, 5)
MAX_LEN = 42
SAMPLINGS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, seed=3, top_p=0.95),
    SamplingParams(temperature=0.8, seed=4, repetition_penalty=1.3, frequency_penalty=0.4),
    SamplingParams(temperature=0.0, presence_penalty=0.7, stop_token_ids=tuple(range(0, 97, 9))),
)

PROMPTS = st.tuples(st.integers(0, 17), st.integers(1, 7), st.integers(0, 1))
WHICH = st.integers(0, 1)


@cache
def backends(folder: str) -> tuple[TorchBackend, ...]:
    """Two tight ones, whose blocks differ in size, and one for lone runs."""
    return (
        load(folder, num_blocks=11, block_size=4, num_host_blocks=9),
        load(folder, num_blocks=14, block_size=3, num_host_blocks=7),
        load(folder, num_blocks=16, block_size=8),
    )


@cache
def expected(folder: str, token_ids: tuple[int, ...], sampling: SamplingParams) -> list[int]:
    request = a_request(0, token_ids, sampling, model=MODEL)
    alone = run_alone(backends(folder)[2], request, MAX_LEN)
    if sampling.temperature == 0.0 and not sampling.has_penalties:
        assert alone == reference_output(folder, token_ids, len(alone))
    return alone


class Memory(RuleBasedStateMachine):
    """Rules are what happens to two workers; ``folder`` is set by the test."""

    folder = ""

    @initialize(
        batching=st.sampled_from(["fcfs", "sarathi", "headway", "las", "uniboost"]),
        chunk=st.sampled_from([3, 9, 64]),
        eager=st.booleans(),
        swap_time=st.sampled_from([0.0, 1e-9, 10.0]),
        rounds=st.integers(0, 3),
        watermark=st.sampled_from([0.0, 0.1]),
        ahead=st.booleans(),
        beside=st.booleans(),
        tiers=st.sampled_from([2, 2, 1]),
    )
    def start(
        self,
        batching: str,
        chunk: int,
        eager: bool,
        swap_time: float,
        rounds: int,
        watermark: float,
        ahead: bool,
        beside: bool,
        tiers: int,
    ) -> None:
        self.client = Client()
        self.requests: dict[int, Request] = {}
        self.cancelled: set[int] = set()
        self.workers = [
            EngineWorker(
                name,
                backend,
                self.client,
                batching=batching,
                chunk=chunk,
                max_len=MAX_LEN,
                eager=eager,
                swap_time=swap_time,
                prefix_caching=True,
                move_rounds=rounds,
                watermark=watermark,
                runs_ahead=ahead,
                swaps_beside=beside,
                host_prefixes=tiers == 2,
            )
            for name, backend in zip("ab", backends(self.folder), strict=False)
        ]
        for worker in self.workers:
            worker.peers = dict(zip("ab", self.workers, strict=True))

    @rule(
        where=WHICH,
        shapes=st.lists(PROMPTS, min_size=1, max_size=3),
        sampling=st.sampled_from(SAMPLINGS),
        max_tokens=st.integers(1, 20),
    )
    def submit(
        self,
        where: int,
        shapes: list[tuple[int, int, int]],
        sampling: SamplingParams,
        max_tokens: int,
    ) -> None:
        """Requests that may begin alike, in one dispatch."""
        requests = []
        for num_shared, num_own, variant in shapes:
            token_ids = (*PREFIX[:num_shared], *prompt(num_own, variant))
            wanted = SamplingParams(
                **{f: getattr(sampling, f) for f in SamplingParams.__slots__}
                | {"max_tokens": max_tokens}
            )
            request = a_request(len(self.requests), token_ids, wanted, model=MODEL)
            self.requests[request.stream_id] = request
            requests.append(request)
        batch = UnitBatch(0, tuple(requests))
        self.workers[where].post(Dispatch(requests[0].stream_id + 1, (batch,)))

    @rule(where=WHICH, count=st.integers(1, 6))
    def run_passes(self, where: int, count: int) -> None:
        for _ in range(count):
            self.workers[where].run_pass()

    @precondition(lambda self: any(worker.decoding() for worker in self.workers))
    @rule(where=WHICH, pick=st.integers(0, 99), count=st.integers(0, 3))
    def move(self, where: int, pick: int, count: int) -> None:
        """To the other worker, where it goes on or comes back from."""
        keys = self.workers[where].decoding()
        if keys:
            target = "ba"[where]
            self.workers[where].post(Handoff(keys[pick % len(keys)], target, target, 0, 1))
            self.run_passes(where, count)

    @precondition(lambda self: any(worker.moves for worker in self.workers))
    @rule(pick=st.integers(0, 99), count=st.integers(1, 4))
    def go_on_moving(self, pick: int, count: int) -> None:
        for _ in range(count):
            moves = [move for worker in self.workers for move in worker.moves.values()]
            if moves:
                moves[pick % len(moves)].step()

    @precondition(lambda self: any(worker.moves for worker in self.workers))
    @rule(pick=st.integers(0, 99))
    def break_off(self, pick: int) -> None:
        moves = [move for worker in self.workers for move in worker.moves.values()]
        moves[pick % len(moves)].break_off()

    @precondition(lambda self: self.requests)
    @rule(pick=st.integers(0, 99))
    def cancel(self, pick: int) -> None:
        stream_id = pick % len(self.requests)
        self.cancelled.add(stream_id)
        for worker in self.workers:
            worker.post(CancelStream(StreamKey("g", stream_id)))

    def teardown(self) -> None:
        """Let everything end, then look."""
        if not hasattr(self, "workers"):
            return
        limit = 3000
        while any(worker.moves or worker.flying for worker in self.workers):
            limit -= 1
            assert limit, "the workers never come to rest"
            for worker in self.workers:
                worker.run_pass()
                for move in list(worker.moves.values()):
                    move.step()
        for stream_id, request in self.requests.items():
            alone = expected(self.folder, tuple(request.prompt_token_ids), request.sampling)
            output = self.client.output(stream_id)
            assert output == alone[: len(output)]
            if stream_id not in self.cancelled:
                assert output == alone
                assert self.client.ends[stream_id] in ("length", "stop")
        for worker in self.workers:
            assert list(worker.leaks()) == []


@pytest.mark.parametrize("num_examples", [15, pytest.param(40, marks=pytest.mark.slow)])
def test_memory_never_shows_in_what_is_generated(llama: str, num_examples: int) -> None:
    class Here(Memory):
        folder = llama

    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=num_examples,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            phases=[Phase.generate],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
