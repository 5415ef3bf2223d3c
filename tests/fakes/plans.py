"""A worker's state and its planner alone: passes are computed by the test, tokens are zeros."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from headway.cluster import Role, WorkerInfo
from headway.core.worker.lifecycle import Stage
from headway.core.worker.planner import Limits, PassPlanner
from headway.core.worker.sequence import Sequence
from headway.core.worker.settings import WorkerSettings
from headway.core.worker.state import WorkerState
from headway.forward_pass import PassItem, Sampled
from headway.policies.batching import Batching
from headway.request import FinishReason, SamplingParams, StreamKey
from headway.service_class import NO_STANDING, Standing
from tests.fakes.requests import a_request

MARKER = 7
"""Ends the reasoning of a request that reasons."""


@dataclass
class Planned:
    """One DP unit, its planner, and what has ended."""

    state: WorkerState
    planner: PassPlanner
    policy: Batching
    now: float = 0.0
    lengths: dict[StreamKey, int] = field(default_factory=dict)
    answers: dict[StreamKey, int] = field(default_factory=dict)
    ended: list[Sequence] = field(default_factory=list)

    def come(
        self,
        name: int,
        prompt: int,
        output: int,
        *,
        reasoning: int = 0,
        arrival_at: float = -1.0,
        standing: Standing = NO_STANDING,
        is_read: bool = True,
        num_prompt_logprobs: int | None = None,
    ) -> Sequence:
        """A request of so many tokens; the first ``reasoning`` of its output are not shown."""
        key = StreamKey("g", name)
        self.lengths[key], self.answers[key] = output, reasoning
        request = a_request(
            name,
            (1,) * prompt,
            SamplingParams(max_tokens=output, num_prompt_logprobs=num_prompt_logprobs),
            arrival_at=self.now if arrival_at < 0 else arrival_at,
            reasons=reasoning > 0,
            standing=standing,
            is_read=is_read,
        )
        self.state.queue(request, 0)
        return self.state.units[0].sequences[key]

    def fresh_order(self) -> list[StreamKey]:
        """All candidates, ranked and sorted anew."""
        unit = self.state.units[0]
        found = [s for key in unit.sequences if (s := unit.candidate(key)) is not None]
        return [s.key for s in sorted(found, key=self._place)]

    def _place(self, sequence: Sequence) -> tuple[bool, tuple[float, ...], StreamKey]:
        is_later = self.state.units[0].decodes_first and not sequence.decoding
        return is_later, self.policy.rank(sequence, now=self.now).rank, sequence.key

    def plan(self) -> list[PassItem]:
        """The next pass, not yet run."""
        unit = self.state.units[0]
        return [item for item, _ in self.planner.plan(unit, now=self.now)]

    def run(self, items: list[PassItem], pass_time: float = 0.01) -> None:
        """Compute a pass: every request draws its next token."""
        self.now += pass_time
        for swap in self.state.take_swaps()[0]:
            swapped = self.state.find(swap.key)
            if swapped is not None and swapped.stage is Stage.SWAPPING_OUT:
                self.state.units[0].end_swap(swapped, has_failed=False)
        for item in items:
            sequence = self.state.find(item.key)
            assert sequence is not None
            sequence.computed(len(item.token_ids))
            if item.sample:
                self.draw(sequence, pass_time)
        self.planner.passed(pass_time, sum(len(i.token_ids) for i in items), 1)

    def draw(self, sequence: Sequence, pass_time: float) -> None:
        """Its next token; it ends with its last."""
        ends_reasoning = len(sequence.output) + 1 == self.answers[sequence.key]
        token = Sampled(sequence.key, MARKER if ends_reasoning else 1)
        self.state.drew(sequence, token, now=self.now, step=pass_time)
        is_long = sequence.num_tokens >= self.state.max_len
        if is_long or len(sequence.output) >= self.lengths[sequence.key]:
            self.planner.completed(sequence, now=self.now)
            self.state.finish(sequence, FinishReason.LENGTH)
            self.ended.append(sequence)

    def step(self, num_passes: int = 1) -> list[PassItem]:
        """So many passes; the last one's items."""
        items: list[PassItem] = []
        for _ in range(num_passes):
            items = self.plan()
            self.run(items)
        return items

    def finish(self, limit: int = 20_000) -> None:
        """Until every request has ended."""
        while self.state.units[0].sequences:
            assert limit > 0, "the planner never serves who is left"
            limit -= 1
            self.step()

    @property
    def preempted(self) -> Counter[int]:
        """Voluntary preemptions of requests that are here, by name."""
        sequences = self.state.units[0].sequences.values()
        return Counter({s.key.stream_id: s.num_voluntary for s in sequences})


def make_planned(
    policy: Batching,
    *,
    blocks: int = 10,
    block_size: int = 4,
    chunk: int = 64,
    watermark: float = 0.0,
    max_running: int = 0,
    host_tokens: int = 0,
    pace: float = 0.1,
    role: Role = Role.UNIFIED,
) -> Planned:
    """One unit under this policy."""
    info = WorkerInfo("w", "w:1", role, "m", 1, chunk, block_size, blocks, 100_000, 8)
    lengths: dict[StreamKey, int] = {}
    settings = WorkerSettings(end_of_reasoning=(MARKER,), host_tokens=host_tokens, reader_pace=pace)
    state = WorkerState(info, [0], settings, lengths.__getitem__)
    planner = PassPlanner(policy, Limits(watermark, max_running))
    return Planned(state, planner, policy, lengths=lengths)


def names(items: list[PassItem]) -> list[int]:
    """Who is served."""
    return [item.key.stream_id for item in items]
