"""Requests of a vLLM that are counted by the step have the numbers of those looked at each step."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.worker.sequence import Sequence
from headway.cost.pass_time import Share
from headway_vllm.hints import Hints
from headway_vllm.order import PolicyOrder
from headway_vllm.settings import OrderSettings

END, PLAIN = 7, 5
POLICIES = (
    "fcfs",
    "uniboost",
    "pascal",
    "headway",
    "uniboost-memguard",
    "las",
    "skip-join-mlfq",
    "rr",
)


@dataclass
class Told:
    """A request after a step, as vLLM would tell."""

    request_id: str
    new_token_ids: list[int]
    finish_reason: str | None = None


@dataclass
class Live:
    """A request in the engine."""

    num_prompt: int
    num_computed: int = 0
    num_output: int = 0
    runs: bool = False


@dataclass
class Step:
    """A step that has been planned."""

    counts: dict[str, int]
    drawn: list[Told]


@dataclass
class Engine:
    """Random steps of an engine over two orders: ``each`` looks at every request in each step."""

    random: Random
    each: PolicyOrder
    steady: PolicyOrder
    is_ahead: bool
    """True if it plans a step before it takes the last one's tokens."""
    now: float = 1_700_000_000.0
    number: int = 0
    live: dict[str, Live] = field(default_factory=dict)
    ended: list[tuple[object, ...]] = field(default_factory=list)

    @property
    def both(self) -> tuple[PolicyOrder, PolicyOrder]:
        return self.each, self.steady

    def come(self) -> None:
        self.number += 1
        name, length = f"r{self.number}", self.random.randrange(1, 60)
        hints = Hints(self.random.random() < 0.4, self.random.choice([0.0, 30.0]))
        arrived_at = self.now - self.random.random()
        for order in self.both:
            order.came(name, [1] * length, 500, hints, arrived_at, now=self.now)
        self.live[name] = Live(length)

    def go(self) -> None:
        """Abort a request, or preempt one that runs."""
        name = self.random.choice(sorted(self.live))
        if self.random.random() < 0.5:
            self.compare(name)
            for order in self.both:
                order.went(name)
            del self.live[name]
        elif self.live[name].runs:
            is_voluntary = self.random.random() < 0.5
            for order in self.both:
                order.preempted(name, voluntary=is_voluntary, now=self.now)
            self.live[name].runs, self.live[name].num_computed = False, 0

    def plan(self, calm: bool) -> Step:
        """Plan a step of those that run, and perhaps of one that waits."""
        counts, starts, drawn = dict[str, int](), dict[str, int](), list[Told]()
        expected = [0, 0, 0, 0]
        for name, each in self.live.items():
            if self.random.random() < (0.0 if calm else 0.1) or not (each.runs or not calm):
                continue
            if not each.runs:
                most = each.num_prompt + each.num_output - 1
                each.num_computed = self.random.choice([0, each.num_prompt // 2, most])
            each.runs = True
            left = each.num_prompt + each.num_output - each.num_computed
            if not left:  # its token was stale: it waits until it is preempted
                continue
            speculates = left == 1 and not calm and self.random.random() < 0.1
            count = 3 if speculates else min(left, self.random.choice([8, 16, 64]))
            counts[name], starts[name] = count, each.num_computed
            if (count == 1 or speculates) and each.num_output:
                expected[2] += 1
                expected[3] += each.num_computed + 1
                expected[0] += count - 1  # drafts cost what a prompt's tokens cost
                expected[1] += (count - 1) * each.num_computed
            else:
                expected[0] += count
                expected[1] += count * each.num_computed
            if speculates:
                drawn.append(self._draw(name, self.random.randrange(1, 4)))
                each.num_computed += len(drawn[-1].new_token_ids)
                continue
            each.num_computed += count
            if count == left and (calm or self.random.random() < 0.97):  # else it is stale
                drawn.append(self._draw(name, 1))
        shares = {order.planned(counts, starts, now=self.now) for order in self.both}
        # Ahead of a prompt's first token, its first decoding step counts as one of the prompt.
        assert len(shares) == 1
        assert self.is_ahead or shares == {Share(*expected)}
        self.random.shuffle(drawn)
        return Step(counts, drawn)

    def _draw(self, name: str, count: int) -> Told:
        tokens = [END if self.random.random() < 0.02 else PLAIN for _ in range(count)]
        self.live[name].num_output += count
        return Told(name, tokens, "stop" if self.random.random() < 0.01 else None)

    def take(self, step: Step, seconds: float) -> None:
        """Let both take a step's tokens."""
        told = {each.request_id: each for each in step.drawn}
        for name, count in step.counts.items():
            each = told.get(name, Told(name, []))
            is_over = each.finish_reason is not None
            tokens = each.new_token_ids
            self.each.computed(name, count, tokens, seconds, self.now, ended=is_over)
        self.steady.stepped(step.counts, step.drawn, seconds, self.now)
        for each in step.drawn:
            if each.finish_reason is not None:
                self.live.pop(each.request_id, None)
        share = Share(0, 0, len(step.counts), 10)
        for order in self.both:
            order.ran(seconds, share)

    def settle(self) -> None:
        """Rank what has moved, and compare the orders."""
        for order in self.both:
            order.settle(now=self.now)
        for kind in ("running", "waiting"):
            one, other = ([p[:2] for p in getattr(order.queue, kind)] for order in self.both)
            assert one == other
        if self.live and self.random.random() < 0.1:
            self.compare(self.random.choice(sorted(self.live)))

    def compare(self, name: str) -> None:
        assert numbers(self.each.synced(name)) == numbers(self.steady.synced(name))


def numbers(sequence: Sequence) -> tuple[object, ...]:
    return (
        sequence.stage,
        sequence.kv.num_computed,
        sequence.attained_tokens,
        sequence.num_cached_tokens,
        sequence.num_output_tokens,
        sequence.served,
        sequence.in_hand_until,
        sequence.reader.answer_start,
        sequence.num_preemptions,
    )


def run(
    seed: int, policy: str, *, is_ahead: bool, end: tuple[int, ...], start: tuple[int, ...] = ()
) -> PolicyOrder:
    """Run an engine for some hundred steps."""
    random = Random(seed)
    chosen = OrderSettings(policy, end_of_reasoning=end, start_of_reasoning=start)
    engine = Engine(random, chosen.order(), chosen.order(), is_ahead)
    in_flight: Step | None = None
    for place in range(300):
        calm = place % 150 > 50  # nobody comes, goes or pauses
        while not calm and len(engine.live) < 12 and random.random() < 0.5:
            engine.come()
        if engine.live and not calm and random.random() < 0.2:
            engine.go()
        engine.settle()
        seconds = random.choice([0.02, 0.05, 0.3]) * (1 + random.random())
        step = engine.plan(calm)
        engine.now += seconds
        for each in (in_flight, None if is_ahead else step):
            if each is not None:
                engine.take(each, seconds)
        in_flight = step if is_ahead else None
    for name in engine.live:
        engine.compare(name)
    return engine.steady


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    policy=st.sampled_from(POLICIES),
    is_ahead=st.booleans(),
    end=st.sampled_from([(), (END,), (PLAIN, END)]),
    start=st.sampled_from([(), (3, 4)]),
)
def test_numbers_and_ranks_are_those_of_requests_looked_at_in_each_step(
    seed: int, policy: str, is_ahead: bool, end: tuple[int, ...], start: tuple[int, ...]
) -> None:
    run(seed, policy, is_ahead=is_ahead, end=end, start=start)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_calm_engine_is_counted_by_the_step(policy: str) -> None:
    order = OrderSettings(policy).order()
    names = [f"r{number}" for number in range(8)]
    for number, name in enumerate(names):
        order.came(name, [1] * 4, 5000, Hints(), 100.0 + number, now=110.0)
    order.planned(dict.fromkeys(names, 4), dict.fromkeys(names, 0), now=110.0)
    drawn = [Told(name, [PLAIN]) for name in names]
    order.stepped(dict.fromkeys(names, 4), drawn, 0.01, 110.0)
    counts = dict.fromkeys(names, 1)
    for place in range(3000):
        now = 110.0 + place / 100
        order.settle(now=now)
        order.planned(counts, dict.fromkeys(names, 4 + place), now=now)
        order.stepped(counts, drawn, 0.01, now)
        assert order.num_steady == 8
    assert {order.synced(name).num_output_tokens for name in names} == {3001}
    for name in names:
        order.went(name)
    assert order.num_steady == 0
