"""Prefixes in two tiers: no block is lost or doubled, and every request ends with its tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.blocks import BlockPool, block_names
from headway.cluster import Role
from headway.core.worker.events import KvAborted, PassFailed, TransferEnded
from headway.core.worker.lifecycle import Stage
from headway.core.worker.unit import WorkerUnit
from headway.cost.costs import Costs
from headway.messages import ChangeRole
from headway.policies import registry
from proof.vopr.invariants import problem_of_blocks
from tests.fakes.paged import WorkerHarness, expected_output, transfer
from tests.fakes.worker_core import dispatch, make_request, make_worker
from tests.fakes.worker_pair import WorkerPair, steps

SIZE = 4
STEPS = st.lists(steps("submit", "submit"), min_size=20, max_size=80)
RATES = st.sampled_from([Costs(), Costs(prefill_per_token=1e-3, swap_per_token=1e-6)])
"""Unknown, one block a pass; and so that all is saved and read."""
CHAINS = [tuple(range(start, start + 12)) for start in (10, 30, 50, 70)]


def check_books(unit: WorkerUnit) -> None:
    """Each block of both memories is in one place."""
    assert not problem_of_blocks(unit)
    host, prefixes = unit.host, unit.host.prefixes
    places = [place.block for place in prefixes._places.values()]
    swapped = [block for s in unit.sequences.values() for block in s.kv.host_blocks]
    written = [*prefixes._saving]
    reading = [block for block in prefixes._num_readers if block not in places]
    used = [*places, *swapped, *written, *reading, *host._leaving, *host._free]
    assert len(used) == len(set(used))


class Pair(WorkerPair):
    """Two workers whose requests begin like one of a few others."""

    def __init__(self, **chosen: Any) -> None:
        super().__init__(prefix_caching=True, **chosen)
        for worker in self.workers:
            worker.model.shared = True
        self.prompts: dict[int, tuple[int, ...]] = {}

    def send(self, worker: WorkerHarness, other: WorkerHarness) -> None:
        """Send a part of a move; it waits until no pass has to save what its blocks held before."""
        while any(each.swapped_out for each in other.passes):
            other.run_pass()
        transfer(worker, other)

    def submit(self, worker: WorkerHarness, which: int) -> None:
        stream_id = self.num_submitted
        prompt = (*CHAINS[which % 2], *range(which), 1 + stream_id % 3)
        self.prompts[stream_id] = prompt
        request = replace(
            make_request(stream_id, max_tokens=6),
            prompt_token_ids=prompt,
            ends_session=stream_id % 4 == 0,
        )
        worker.post(dispatch(request, dispatch_id=stream_id))

    def fail(self, worker: WorkerHarness, which: int) -> None:
        """Fail the oldest pass by its copies, by one of its requests, or by no one."""
        failed = worker.passes.popleft()
        copies = [swap.key for swap in (*failed.swapped_out, *failed.swapped_in, *failed.saved)]
        blamed = [item.key for item in failed.items[:1]]
        keys = (tuple(copies), tuple(blamed), ())[which % 3]
        if which % 3 == 1:  # who blames a request has made the copies
            worker.model.run(failed)
        worker.model.failed()
        self.gone.update(item.key.stream_id for item in failed.items)
        self.gone.update(key.stream_id for key in copies)
        worker.post(PassFailed(failed.pass_id, keys, "out of memory"))

    def check(self) -> None:
        for worker in self.workers:
            for unit in worker.core.units:
                check_books(unit)

    def finish(self) -> None:
        """Let all end that waits for nobody; all that was drawn must be right."""
        for worker in self.workers:
            worker.post(ChangeRole(Role.UNIFIED))
        self.run()
        for worker in self.workers:  # moves that were called off, which no wire here does
            for unit in worker.core.units:
                for key, sequence in list(unit.sequences.items()):
                    if sequence.stage is Stage.ARRIVING:
                        self.gone.add(key.stream_id)
                        worker.post(KvAborted(key))
                    elif sequence.departure is not None:
                        worker.post(TransferEnded(key, "other", 0, False))
        self.run()
        assert not any(worker.passes or worker.transfers for worker in self.workers)
        assert not any(worker.core.num_held for worker in self.workers)
        self.check_outputs()
        for worker in self.workers:
            for unit in worker.core.units:
                unit.host.settle()
                assert unit.pool.num_free == unit.pool.num_blocks
                assert unit.host.num_free == unit.host.num_blocks

    def run(self) -> None:
        """Let passes and moves go on, until there is none."""
        for _ in range(400):
            if not any(worker.passes or worker.transfers for worker in self.workers):
                return
            for worker, other in (self.workers, self.workers[::-1]):
                worker.run_pass()
                if worker.transfers:
                    self.send(worker, other)
                self.check()

    def check_outputs(self) -> None:
        for stream_id, prompt in self.prompts.items():
            streams = [worker.tokens.get(stream_id, {}) for worker in self.workers]
            drawn = {index: token for stream in streams for index, token in stream.items()}
            expected = expected_output(prompt, 6)
            assert [drawn[n] for n in sorted(drawn)] == expected[: len(drawn)]
            if stream_id not in self.gone:
                assert len(drawn) == len(expected)


@settings(max_examples=300, deadline=None)
@given(
    steps=STEPS,
    blocks=st.sampled_from([9, 14, 30]),
    host_tokens=st.sampled_from([24, 60, 400]),
    rounds=st.integers(0, 2),
    swaps_beside=st.booleans(),
    costs=RATES,
)
def test_whatever_happens_each_block_is_in_one_place_and_requests_end(
    steps: list[tuple[str, int, int]],
    blocks: int,
    host_tokens: int,
    rounds: int,
    swaps_beside: bool,
    costs: Costs,
) -> None:
    pair = Pair(
        blocks=blocks,
        host_tokens=host_tokens,
        move_rounds=rounds,
        swaps_beside=swaps_beside,
        costs=costs,
    )
    for step in steps:
        pair.step(*step)
        pair.check()
    pair.finish()


@pytest.mark.parametrize("name", registry.REGISTRY["batching"])
@settings(max_examples=25, deadline=None)
@given(
    load=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(0, 4)), max_size=12),
    chunk=st.integers(2, 24),
    role=st.sampled_from([Role.UNIFIED, Role.CONVERTIBLE]),
    host_tokens=st.sampled_from([24, 400]),
    swaps_beside=st.booleans(),
    runs_ahead=st.booleans(),
    costs=RATES,
)
def test_on_a_tight_pool_every_request_ends_whatever_the_order(
    name: str,
    load: list[tuple[int, int, int]],
    chunk: int,
    role: Role,
    host_tokens: int,
    swaps_beside: bool,
    runs_ahead: bool,
    costs: Costs,
) -> None:
    worker = make_worker(
        role,
        blocks=9,
        chunk=chunk,
        batching=registry.make("batching", name),
        watermark=0.0,
        prefix_caching=True,
        host_tokens=host_tokens,
        swaps_beside=swaps_beside,
        runs_ahead=runs_ahead,
        costs=costs,
    )
    worker.model.shared = True
    prompts = [(*CHAINS[chain], *range(1, 1 + more)) for chain, more, _ in load]
    for stream_id, (prompt, (_, _, num_passes)) in enumerate(zip(prompts, load, strict=True), 1):
        request = replace(make_request(stream_id, max_tokens=8), prompt_token_ids=prompt)
        worker.post(dispatch(request, dispatch_id=stream_id))
        for _ in range(num_passes):
            worker.run_pass()
    worker.run_all(20_000)
    for stream_id, prompt in enumerate(prompts, 1):
        stream = worker.tokens[stream_id]
        assert [stream[n] for n in range(len(stream))] == expected_output(prompt, 8)
    check_books(worker.core.units[0])


def test_what_is_cached_twice_is_no_fork() -> None:
    """Two that have computed one chain side by side are one line, which goes when it is over."""
    pool, names = BlockPool(8, SIZE), block_names(range(12), SIZE)
    first, second = list[int](), list[int]()
    assert pool.grow(first, 12)
    assert pool.grow(second, 12)
    pool.cache(first, names)
    pool.cache(second, names)
    pool.release(second)
    assert pool.retire(first) == 0
