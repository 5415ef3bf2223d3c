"""Batching policies: the kept order is the order drawn anew, and every request ends."""

from __future__ import annotations

from heapq import merge
from math import floor, isnan, log2
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.cluster import Role
from headway.core.worker.events import Predicted
from headway.core.worker.lifecycle import Stage
from headway.core.worker.sequence import Sequence
from headway.forward_pass import PassItem
from headway.policies import registry
from headway.policies.batching import Batching
from headway.policies.batching.queue import RankedQueue
from headway.request import StreamKey
from headway.service_class import Standing
from tests.fakes.plans import Planned, make_planned

K = 4
BOUNDED = ("uniboost", "uniboost-memguard")
"""Policies with one voluntary preemption a request and level."""

SMALL: dict[str, dict[str, Any]] = {
    "headway": {
        "long_tokens": 5,
        "length_weight": 0.5,
        "unread_wait": 0.5,
        "reserve": 0.1,
        "quantum": 2,
        "critical_slack": 0.1,
        "resume_slack": 0.3,
    },
    "lpm": {"aging_tokens_per_s": 5.0},
    "ltr": {"patience": 0.5, "quantum": 5},
    "pascal": {"quantum": 5, "demote_tokens": 20},
    "rr": {"quantum": 5},
    "shortest-prefix": {"aging_tokens_per_s": 5.0},
    "skip-join-mlfq": {"quantum": 2, "patience": 0.5},
    "uniboost": {"k": K},
    "uniboost-memguard": {"k": K},
}
"""Parameters with which things happen within a few dozen tokens."""

GAMMAS = st.sampled_from([0.0, 1e-4, 0.05, 10.0, float("inf")])


def make(name: str, **params: object) -> Batching:
    policy: Batching = registry.make("batching", name, **{**SMALL.get(name, {}), **params})
    return policy


def has_gamma(name: str) -> bool:
    return "gamma" in registry.find("batching", name).parameters()


def tuned(name: str, gamma: float) -> Batching:
    return make(name, gamma=gamma) if has_gamma(name) else make(name)


# --- the kept order ---------------------------------------------------------------------

CHANGES = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *["come"] * 2,
                *["serve"] * 3,
                "run",
                "stop",
                "wait",
                "predict",
                "end",
                "tune",
                "pass",
                "role",
                "levels",
            ]
        ),
        st.integers(0, 9),
        st.integers(1, 24),
    ),
    min_size=10,
    max_size=60,
)


class Kept:
    """A queue, and the candidates that it should hold."""

    def __init__(self, policy: Batching) -> None:
        self.planned = make_planned(policy, blocks=1000)
        self.policy = policy
        self.queue: RankedQueue[Sequence] = RankedQueue(policy)
        self.num_come = 0
        self.decodes_first = False
        self.levels: dict[str, float] = {}

    @property
    def sequences(self) -> list[Sequence]:
        return list(self.planned.state.units[0].sequences.values())

    def change(self, name: str, which: int, size: int) -> None:
        """Something that may happen to a worker; ``which`` of the requests, how large."""
        if name == "come":
            reasoning = size // 2 if which % 2 else 0
            standing = Standing("abc"[which % 3])
            found = self.planned.come(
                self.num_come, size, size + 1, reasoning=reasoning, standing=standing
            )
            self.num_come += 1
            self.queue.touch(found, now=self.planned.now)
        elif name == "wait":
            self.planned.now += size / 10
        elif name == "tune":
            self.policy.tune(10.0 ** (which - 5))
        elif name == "role":
            self.decodes_first = bool(which % 2)
            self.queue.put_decodes_first(self.decodes_first)
        elif name == "levels":
            self.levels = {"a": 1.0, "b": float(size % 3), "c": 2.0} if which else {}
            self.queue.put_levels(self.levels)
        elif name == "pass":
            self.policy.passed(size / 1000, 10 * (which + 1))
        elif self.sequences:
            sequence = self.sequences[which % len(self.sequences)]
            getattr(self, name)(sequence, size)

    def run(self, sequence: Sequence, size: int) -> None:
        if sequence.stage is Stage.WAITING:
            self.planned.state.units[0].admit(sequence)
            self.queue.touch(sequence, now=self.planned.now)

    def stop(self, sequence: Sequence, size: int) -> None:
        if sequence.stage is Stage.RUNNING:
            self.policy.preempted(sequence, voluntary=bool(size % 2))
            self.planned.state.units[0].preempt(sequence, voluntary=bool(size % 2))
            self.queue.touch(sequence, now=self.planned.now)

    def predict(self, sequence: Sequence, size: int) -> None:
        answer = Predicted((sequence.key,), (sequence.num_output_tokens,), (float(size),))
        self.planned.state.predictions.take(answer, self.planned.state.find)
        self.queue.touch(sequence, now=self.planned.now)

    def end(self, sequence: Sequence, size: int) -> None:
        self.planned.state.units[0].remove(sequence)
        self.queue.discard(sequence.key)
        self.policy.forget(sequence.key)

    def serve(self, sequence: Sequence, size: int) -> None:
        """A pass over it and the next one, whatever their places; then only what it moved."""
        unit = self.planned.state.units[0]
        unit.changed.clear()
        pass_of = {sequence.key, self.sequences[0].key}
        chosen = [e for _, _, e in [*self.queue.running] if e.candidate.key in pass_of]
        for entry in chosen:
            self._advance(entry.candidate, size)
        for key in unit.changed:
            candidate = unit.candidate(key)
            if candidate is not None:
                self.queue.touch(candidate, now=self.planned.now)
        self.queue.settle(chosen, now=self.planned.now)

    def _advance(self, sequence: Sequence, size: int) -> None:
        """Compute a part of its prompt, or draw a token; not the last one, it stays."""
        self.planned.now += 0.01
        count = min(size, sequence.num_remaining)
        if sequence.num_remaining > 1 or not sequence.output:
            self.planned.state.units[0].changed[sequence.key] = None
        draws = count == sequence.num_remaining
        if draws and len(sequence.output) + 1 < self.planned.lengths[sequence.key]:
            sequence.computed(count)
            self.planned.draw(sequence, 0.01)
        elif not draws:
            sequence.computed(count)

    def check(self) -> None:
        """Running and waiting ones, and all together, stand where their ranks say."""
        now = self.planned.now
        self.queue.settle((), now=now)
        ranks = {s.key: self._rank(s) for s in self.sequences}
        assert not any(isnan(number) for rank in ranks.values() for number in rank)
        fresh = sorted(ranks, key=lambda key: (ranks[key], key))
        assert [key for _, key, _ in merge(self.queue.running, self.queue.waiting)] == fresh
        assert len(self.queue) == len(fresh)
        for places, running in ((self.queue.running, True), (self.queue.waiting, False)):
            assert all(entry.candidate.running is running for _, _, entry in places)
            assert all(rank == ranks[key] for rank, key, _ in places)

    def _rank(self, sequence: Sequence) -> tuple[float, ...]:
        rank = self.policy.rank(sequence, now=self.planned.now).rank
        rank = (not sequence.decoding, *rank) if self.decodes_first else rank
        return (self.levels[sequence.tenant], *rank) if self.levels else rank


@pytest.mark.parametrize("name", registry.REGISTRY["batching"])
@settings(max_examples=150, deadline=None)
@given(changes=CHANGES, gamma=GAMMAS, check_each=st.booleans())
def test_the_kept_order_is_all_candidates_sorted_anew(
    name: str, changes: list[tuple[str, int, int]], gamma: float, check_each: bool
) -> None:
    kept = Kept(tuned(name, gamma))
    for change in changes:
        kept.change(*change)
        if check_each:
            kept.check()
    kept.check()


# --- whole workers ----------------------------------------------------------------------

LOADS = st.lists(
    st.tuples(
        st.integers(1, 30),  # prompt
        st.integers(1, 24),  # output
        st.integers(0, 12),  # reasoning
        st.integers(0, 6),  # passes before it comes
    ),
    min_size=3,
    max_size=12,
)


def run_to_the_end(planned: Planned, load: list[tuple[int, int, int, int]]) -> None:
    """Requests come between passes; in each the items stand in the order drawn anew."""
    for name, (prompt, output, reasoning, num_passes) in enumerate(load):
        for _ in range(num_passes):
            check_pass(planned)
        planned.come(name, prompt, output, reasoning=min(reasoning, output - 1))
    limit = 20_000  # `las` computes again nearly all of a request for each token it draws
    while planned.state.units[0].sequences:
        check_pass(planned)
        limit -= 1
        assert limit > 0, "somebody is never served"


def check_pass(planned: Planned) -> None:
    order = {key: place for place, key in enumerate(planned.fresh_order())}
    decoding = decoding_requests(planned)
    items = planned.plan()
    places = [order[item.key] for item in items]
    assert places == sorted(places)
    assert items or not order, "who waits for nothing is served"
    if planned.state.units[0].decodes_first:
        check_nobody_decodes_later(planned, decoding, items)
    planned.run(items)


def decoding_requests(planned: Planned) -> dict[StreamKey, Stage]:
    """Return the stages of who decodes: with blocks, or with its KV in host memory."""
    sequences = planned.state.units[0].sequences.values()
    return {s.key: s.stage for s in sequences if s.decoding}


def check_nobody_decodes_later(
    planned: Planned, decoding: dict[StreamKey, Stage], items: list[PassItem]
) -> None:
    """Prompts are in a pass only with all who decode and have kept their blocks.

    Who returns from host memory decodes, too. A better one may take the last free blocks, and who
    needs one then waits with those that it has: no watermark keeps any for its growth.
    """
    unit = planned.state.units[0]
    served = {item.key for item in items}
    held = [key for key, stage in decoding.items() if stage is Stage.RUNNING]
    left_out = [k for k in held if k not in served and unit.sequences[k].stage is Stage.RUNNING]
    assert not left_out or served <= decoding.keys()


@pytest.mark.parametrize("name", registry.REGISTRY["batching"])
@settings(max_examples=80, deadline=None)
@given(
    load=LOADS,
    gamma=GAMMAS,
    chunk=st.integers(1, 24),
    watermark=st.sampled_from([0.0, 0.1]),
    max_running=st.sampled_from([0, 1, 3]),
    host_tokens=st.sampled_from([0, 30]),
    role=st.sampled_from([Role.UNIFIED, Role.CONVERTIBLE]),
)
@example(  # a decoding request returns from host memory into the last blocks
    load=[(18, 16, 0, 0), (19, 9, 8, 0), (21, 6, 0, 0)],
    gamma=0.0,
    chunk=20,
    watermark=0.0,
    max_running=0,
    host_tokens=30,
    role=Role.CONVERTIBLE,
)
def test_on_a_tight_pool_every_request_ends_and_no_block_is_lost(
    name: str,
    load: list[tuple[int, int, int, int]],
    gamma: float,
    chunk: int,
    watermark: float,
    max_running: int,
    host_tokens: int,
    role: Role,
) -> None:
    planned = make_planned(
        tuned(name, gamma),
        role=role,
        blocks=15,
        chunk=chunk,
        watermark=watermark,
        max_running=max_running,
        host_tokens=host_tokens,
    )
    run_to_the_end(planned, load)
    assert sorted(s.key.stream_id for s in planned.ended) == list(range(len(load)))
    assert all(len(s.output) == load[s.key.stream_id][1] for s in planned.ended)
    unit = planned.state.units[0]
    assert unit.pool.num_free == 15
    unit.host.settle()
    assert unit.host.num_free == host_tokens // unit.pool.block_size
    num_voluntary = sum(s.num_voluntary for s in planned.ended)
    num_preemptions = sum(s.num_preemptions for s in planned.ended)
    preemptions = planned.planner.preemptions
    assert (preemptions.num_voluntary, preemptions.num_forced) == (
        num_voluntary,
        num_preemptions - num_voluntary,
    )
    assert planned.policy.preempts or num_voluntary == 0


@pytest.mark.parametrize("name", BOUNDED)
@settings(max_examples=200, deadline=None)
@given(load=LOADS, gamma=GAMMAS, chunk=st.integers(4, 40), pace=st.sampled_from([0.001, 0.1, 1.0]))
def test_voluntary_preemptions_are_bounded_by_the_levels_of_a_request(
    name: str, load: list[tuple[int, int, int, int]], gamma: float, chunk: int, pace: float
) -> None:
    asked = {"gamma": gamma, "seconds_per_token": 1e-6, "swap_per_token": 1e-9}
    known = registry.find("batching", name).parameters()
    policy = make(name, **{param: value for param, value in asked.items() if param in known})
    planned = make_planned(policy, blocks=14, chunk=chunk, pace=pace)
    run_to_the_end(planned, load)
    for sequence in planned.ended:
        num_levels = floor(log2(max(1, len(sequence.output)) / K)) + 2
        assert sequence.num_voluntary <= max(1, num_levels)
