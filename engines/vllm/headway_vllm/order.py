"""A batching policy beside vLLM's scheduler: its candidates follow vLLM's requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf

from headway.cluster import Role, WorkerInfo
from headway.core.reasoning import Markers
from headway.core.worker import sequence as candidates
from headway.core.worker.costs import CostMeter
from headway.core.worker.lifecycle import Stage
from headway.core.worker.rates import MemoryRates
from headway.core.worker.reading import Readers, ReadTokens
from headway.core.worker.settings import WorkerSettings
from headway.cost.pass_time import Share
from headway.forward_pass import Sampled
from headway.policies.batching import Batching, RankedQueue
from headway.policies.batching.queue import Entry
from headway.policies.estimation.bucket_mean import BucketMean
from headway.policies.readers import teach
from headway.request import Request, SamplingParams, StreamKey
from headway.service_class import Standing
from headway_vllm.hints import Hints
from headway_vllm.steady import Followed, PolicyAsked, SteadyRequests, StepOutput

_ENGINE = WorkerInfo("vllm", "", Role.UNIFIED, "", 1, 512, 1, 1, 1, 0)
"""A worker for the meter of costs: its units, and a chunk's tokens where nothing is known."""
_REFUSED = 1.0
"""Seconds for which a policy's refusal of a victim stands."""


class _Refusals:
    """Running requests that a policy would not let yield to the best one that waits.

    A refusal stands while both keep their ranks, for a second at most.
    """

    def __init__(self) -> None:
        self._asked: tuple[object, ...] = ()
        self._until = -inf
        self._ranks: dict[StreamKey, tuple[float, ...]] = {}

    def of(self, *asked: object, now: float) -> dict[StreamKey, tuple[float, ...]]:
        """Return the refused with their ranks; none where something else is asked for."""
        if asked != self._asked or now >= self._until:
            self._asked, self._until, self._ranks = asked, now + _REFUSED, {}
        return self._ranks


class PolicyOrder:
    """The order of a batching policy over the requests of a vLLM engine.

    Requests that draw a token in every step are counted together (``steady.py``).
    """

    def __init__(self, policy: Batching, settings: WorkerSettings, patience: float = 0.0) -> None:
        """``settings``: of the requests' readers; ``patience``: see ``OrderSettings``."""
        self.patience = patience
        self.policy = policy
        self._readers = Readers(settings)
        self.markers = Markers(settings.end_of_reasoning, settings.start_of_reasoning)
        self._steady = SteadyRequests(self._readers, self.markers)
        asked = PolicyAsked(policy, self._steady)
        self.queue: RankedQueue[candidates.Sequence] = RankedQueue(asked)
        self._followed: dict[str, Followed] = {}
        self._names: dict[StreamKey, str] = {}
        self._served: list[Entry[candidates.Sequence]] = []
        self._refusals = _Refusals()
        self._lengths = BucketMean()
        """Tokens that requests of like prompts have drawn here, for a policy that reads lengths."""
        self._number = 0
        self.num_voluntary = self.num_forced = self.num_paused = 0
        self._costs = CostMeter(_ENGINE, settings.costs, MemoryRates(), can_swap=False)

    # --- requests ---------------------------------------------------------------------

    def came(
        self,
        name: str,
        prompt: Sequence[int],
        max_tokens: int,
        hints: Hints,
        arrived_at: float,
        *,
        now: float,
        is_read: bool = True,
    ) -> None:
        """Take a new request in; ``arrived_at`` in seconds since the epoch.

        ``is_read``: whether its client reads the answer as it comes. One that does not say whether
        it reasons does if the model does, unless its prompt ends with the reasoning closed.
        """
        self._number += 1
        reasons = hints.reasons
        if reasons is None:
            reasons = bool(self.markers.end) and not self.markers.is_closed(prompt)
        request = Request(
            request_id=name,
            stream_id=self._number,
            gateway_id="vllm",
            model="",
            prompt_token_ids=prompt or (0,),
            sampling=SamplingParams(max_tokens=min(max(1, max_tokens), 2**31 - 1)),
            arrival_at=arrived_at,
            predicted_output_tokens=hints.predicted_output_tokens,
            standing=Standing(service=hints.service),
            reasons=reasons,
            is_read=is_read,
        )
        self.take(name, request, now=now)

    def take(self, name: str, request: Request, *, now: float) -> None:
        """Take a new request in, which continues after its output so far."""
        output = list(request.output_token_ids)
        length = candidates.Length(request.predicted_output_tokens or None)
        reader = self._readers.of(request, output)
        sequence = candidates.Sequence(Stage.WAITING, request, 0, output, length, reader)
        if length.total is None and self.policy.reads_lengths:
            remaining = self._lengths.remaining(sequence)
            length.total = None if remaining is None else len(output) + remaining
        self.queue.touch(sequence, now=now)
        entry = self.queue.find(sequence.key)
        assert entry is not None, "it has just been ordered"
        self._followed[name] = Followed(name, sequence, entry)
        self._names[sequence.key] = name

    def went(self, name: str) -> None:
        """Forget a request that has ended."""
        self._steady.leave(name)
        followed = self._followed.pop(name, None)
        if followed is not None:
            key = followed.sequence.key
            self._names.pop(key, None)
            self.queue.discard(key)
            self.policy.forget(key)

    def knows(self, name: str) -> bool:
        """Return whether a request is here."""
        return name in self._followed

    def key_of(self, name: str) -> StreamKey:
        """Return a request's key in the order; one that is not here has a key of its own."""
        followed = self._followed.get(name)
        return StreamKey(name, 0) if followed is None else followed.sequence.key

    def place_of(self, name: str) -> tuple[tuple[float, ...], StreamKey]:
        """Return a request's place, the least first."""
        entry = self._followed[name].entry
        return entry.rank, entry.candidate.key

    def synced(self, name: str) -> candidates.Sequence:
        """Return a request as it is after the last step."""
        followed = self._followed[name]
        if name in self._steady:
            self._steady.sync(followed)
        return followed.sequence

    @property
    def num_steady(self) -> int:
        """Number of requests that are counted by the step."""
        return len(self._steady)

    def running(self, *, is_short: bool) -> list[str]:
        """Return the requests that run, best first.

        Where memory ``is_short``, those that give way are behind all others: they lose it first.
        """
        names = self._names
        running = [names[key] for _, key, _ in self.queue.running]
        if is_short and type(self.policy).gives_way is not Batching.gives_way:
            running.sort(key=self.gives_way)
        return running

    def gives_way(self, name: str) -> bool:
        """Return whether a request may lose its blocks ahead of need."""
        return self.policy.gives_way(self.synced(name))

    def yielding(self, for_: str, *, now: float) -> Iterator[str]:
        """Yield the running requests that may yield to a better one that waits, the worst first."""
        waiting = self._followed[for_]
        rank, key = place = waiting.entry.rank, waiting.sequence.key
        refused = self._refusals.of(key, rank, self.policy.epoch, now=now)
        for victim_rank, victim, _ in reversed(self.queue.running):
            if refused.get(victim) is victim_rank:
                continue
            if (victim_rank, victim) <= place:
                return
            name = self._names[victim]
            if self.policy.may_preempt(self.synced(name), waiting.sequence, now=now):
                yield name
            else:
                refused[victim] = victim_rank

    # --- steps ------------------------------------------------------------------------

    def settle(self, *, now: float) -> None:
        """Rank anew what the last step or the time has moved."""
        self.queue.settle([*self._served, *self._steady.due()], now=now)
        self._served = []

    def preempted(self, name: str, *, voluntary: bool, now: float) -> None:
        """Note that a request has lost its blocks."""
        self._steady.leave(name)
        sequence = self._followed[name].sequence
        self.policy.preempted(sequence, voluntary=voluntary)
        sequence.kv.num_computed, sequence.stage = 0, Stage.WAITING
        sequence.num_preemptions += 1
        self.queue.touch(sequence, now=now)
        self.num_voluntary += voluntary
        self.num_forced += not voluntary

    def planned(self, counts: Mapping[str, int], starts: Mapping[str, int], *, now: float) -> Share:
        """Note the tokens that a step computes of each request; ``starts``: those before them.

        Return what the step has to compute.
        """
        apart = self._steady.apart(counts)
        num_decoding = len(counts) - len(apart)
        parts = [0, 0, num_decoding, num_decoding + sum(starts.values())]
        for name in apart:
            count, start = counts[name], starts.get(name, 0)
            parts[3] -= start
            followed = self._followed.get(name)
            if followed is None:
                continue
            sequence = followed.sequence
            if sequence.stage is Stage.WAITING:
                sequence.kv.num_computed = start
                if not sequence.output:
                    sequence.num_cached_tokens = start
                sequence.stage = Stage.RUNNING
                self.queue.touch(sequence, now=now)
            if sequence.output and start + 1 >= sequence.num_tokens:
                parts[2] += 1
                parts[3] += start + 1
                parts[0] += count - 1  # drafts cost what a prompt's tokens cost
                parts[1] += (count - 1) * start
            else:
                parts[0] += count
                parts[1] += count * start
        return Share(*parts)

    def ran(self, step: float, share: Share) -> None:
        """Note the seconds of a step: the policy learns what steps cost here."""
        num_tokens = share.prefill_tokens + share.batch
        if not num_tokens:
            return
        self.policy.passed(step, num_tokens, 1)
        if self._costs.ran([share], step, 1):
            teach(self.policy, self._costs.costs)

    def stepped(
        self, counts: Mapping[str, int], drawn: Sequence[StepOutput], step: float, now: float
    ) -> None:
        """Note what a step has computed of each request, and the tokens that some have drawn."""
        apart = self._steady.leavers(counts, drawn)
        self._steady.passed(step, now)
        for name, count, tokens, ended in apart:
            self.computed(name, count, tokens, step, now, ended=ended)

    def computed(
        self, name: str, count: int, tokens: Sequence[int], step: float, now: float, *, ended: bool
    ) -> None:
        """Note what a step has computed of one request, and the tokens that it has drawn."""
        followed = self._followed.get(name)
        if followed is None:
            return
        self._steady.leave(name)
        sequence = followed.sequence
        sequence.computed(count)
        sequence.served += step
        if tokens:
            self._drew(sequence, tokens, step, now)
        if ended:
            self.policy.completed(sequence, now=now)
            self._lengths.observe(sequence.num_prompt_tokens, sequence.num_output_tokens)
            self.went(name)
            return
        if followed.entry.until_tokens != inf:
            self._served.append(followed.entry)
        if count == len(tokens) == 1:
            self._steady.join(followed)

    def _drew(
        self, sequence: candidates.Sequence, tokens: Sequence[int], step: float, now: float
    ) -> None:
        reader, was_new = sequence.reader, not sequence.output
        answer_start = reader.answer_start
        sequence.output.extend(tokens)
        if answer_start is None:
            sampled = Sampled(sequence.key, tokens[-1], None, tuple(tokens[:-1]))
            self._readers.drew(sequence, sampled, now=now, step=step)
        else:
            self._readers.read_on(sequence, [ReadTokens(len(tokens), step, now)])
        if was_new or reader.answer_start != answer_start:
            self.queue.touch(sequence, now=now)
