"""A batching policy beside vLLM's scheduler: its candidates follow vLLM's requests."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

from headway.cluster import Role, WorkerInfo
from headway.core.worker import sequence as candidates
from headway.core.worker.costs import CostMeter
from headway.core.worker.lifecycle import Stage
from headway.core.worker.rates import MemoryRates
from headway.core.worker.reading import Readers, ReadTokens
from headway.core.worker.settings import WorkerSettings
from headway.cost.pass_time import Share
from headway.errors import Code, HeadwayError
from headway.forward_pass import Sampled
from headway.policies import registry
from headway.policies.batching import Batching, RankedQueue
from headway.policies.batching.queue import Entry
from headway.policies.readers import teach
from headway.request import Request, SamplingParams, StreamKey

_ENGINE = WorkerInfo("vllm", "", Role.UNIFIED, "", 1, 512, 1, 1, 1, 0)
"""What a meter of costs asks of a worker: units, and tokens of a chunk where nothing is known."""
SETTING = "HEADWAY_VLLM"
"""Environment variable with the policy as JSON; the engine's process inherits it."""
_MOST_TOKENS = 1e9
_FIELDS = ("batching", "params", "end_of_reasoning", "start_of_reasoning", "reader_pace")


@dataclass(frozen=True, slots=True)
class OrderSettings:
    """The policy that orders a vLLM engine."""

    batching: str = "fcfs"
    """A name of ``headway policies``."""
    params: Mapping[str, object] = field(default_factory=dict)
    end_of_reasoning: tuple[int, ...] = ()
    """Token ids that end the reasoning of a request that reasons."""
    start_of_reasoning: tuple[int, ...] = ()
    reader_pace: float = 0.1
    """Seconds that a reader takes for a token."""

    def order(self) -> PolicyOrder:
        """Return the order; HeadwayError for a policy or parameter that does not exist."""
        policy: Batching = registry.make("batching", self.batching, **self.params)
        readers = WorkerSettings(
            end_of_reasoning=self.end_of_reasoning,
            start_of_reasoning=self.start_of_reasoning,
            reader_pace=self.reader_pace,
        )
        return PolicyOrder(policy, readers)


def read_settings() -> OrderSettings:
    """Return the settings of the environment; HeadwayError for what is no setting."""
    try:
        given = json.loads(os.environ.get(SETTING, "") or "{}")
    except ValueError as error:
        message = f"{SETTING} is no JSON: {error}"
        raise HeadwayError(Code.INVALID_ARGUMENT, message) from error
    unknown = sorted(set(given) - set(_FIELDS))
    if unknown:
        message = f"{SETTING} has {unknown[0]!r}; it knows {', '.join(_FIELDS)}"
        raise HeadwayError(Code.INVALID_ARGUMENT, message)
    for name in ("end_of_reasoning", "start_of_reasoning"):
        given[name] = tuple(given.get(name, ()))
    return OrderSettings(**given)


class Hints(NamedTuple):
    """The words of a client about its request."""

    reasons: bool = False
    predicted_output_tokens: float = 0.0


def read_hints(told: Mapping[str, Any] | None) -> Hints:
    """Return the hints among a request's extra arguments; what is no hint is ignored."""
    given: Mapping[str, Any] = told or {}
    length: Any = given.get("headway_predicted_output_tokens")
    reasons: Any = given.get("headway_reasons")
    if type(length) not in (int, float) or not 0 <= length < _MOST_TOKENS:
        length = 0.0
    return Hints(type(reasons) in (int, bool) and bool(reasons), length)


class PolicyOrder:
    """The order of a batching policy over the requests of a vLLM engine."""

    def __init__(self, policy: Batching, settings: WorkerSettings) -> None:
        """``settings``: of the requests' readers."""
        self.policy = policy
        self.queue: RankedQueue[candidates.Sequence] = RankedQueue(policy)
        self._readers = Readers(settings)
        self._sequences: dict[str, candidates.Sequence] = {}
        self._entries: dict[str, Entry[candidates.Sequence]] = {}
        self._served: list[Entry[candidates.Sequence]] = []
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
    ) -> None:
        """Take a new request in; ``arrived_at`` in seconds since the epoch."""
        self._number += 1
        request = Request(
            request_id=name,
            stream_id=self._number,
            gateway_id="vllm",
            model="",
            prompt_token_ids=prompt or (0,),
            sampling=SamplingParams(max_tokens=min(max(1, max_tokens), 2**31 - 1)),
            arrival_at=arrived_at,
            predicted_output_tokens=hints.predicted_output_tokens,
            reasons=hints.reasons,
        )
        self.take(name, request, now=now)

    def take(self, name: str, request: Request, *, now: float) -> None:
        """Take a new request in, which continues after its output so far."""
        output = list(request.output_token_ids)
        length = candidates.Length(request.predicted_output_tokens or None)
        reader = self._readers.of(request, output)
        sequence = candidates.Sequence(Stage.WAITING, request, 0, output, length, reader)
        self._sequences[name] = sequence
        self.queue.touch(sequence, now=now)
        entry = self.queue.find(sequence.key)
        assert entry is not None, "it has just been ordered"
        self._entries[name] = entry

    def went(self, name: str) -> None:
        """Forget a request that has ended."""
        sequence = self._sequences.pop(name, None)
        self._entries.pop(name, None)
        if sequence is not None:
            self.queue.discard(sequence.key)
            self.policy.forget(sequence.key)

    def knows(self, name: str) -> bool:
        """Return whether a request is here."""
        return name in self._sequences

    def key_of(self, name: str) -> StreamKey:
        """Return a request's key in the order; one that is not here has a key of its own."""
        sequence = self._sequences.get(name)
        return StreamKey(name, 0) if sequence is None else sequence.key

    def place_of(self, name: str) -> tuple[tuple[float, ...], StreamKey]:
        """Return a request's place, the least first."""
        entry = self._entries[name]
        return entry.rank, entry.candidate.key

    def may_preempt(self, victim: str, for_: str, *, now: float) -> bool:
        """Return whether the policy lets a running request yield to a waiting one."""
        running, waiting = self._sequences[victim], self._sequences[for_]
        return self.policy.may_preempt(running, waiting, now=now)

    # --- steps ------------------------------------------------------------------------

    def settle(self, *, now: float) -> None:
        """Rank anew what the last step or the time has moved."""
        self.queue.settle(self._served, now=now)
        self._served = []

    def preempted(self, name: str, *, voluntary: bool, now: float) -> None:
        """Note that a request has lost its blocks."""
        sequence = self._sequences[name]
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
        parts = [0, 0, 0, 0]
        for name, count in counts.items():
            sequence = self._sequences.get(name)
            if sequence is None:
                continue
            entry = self._entries[name]
            if sequence.stage is Stage.WAITING:
                sequence.kv.num_computed = starts.get(name, 0)
                if not sequence.output:
                    sequence.num_cached_tokens = sequence.kv.num_computed
                sequence.stage = Stage.RUNNING
                self.queue.touch(sequence, now=now)
            if entry.until_tokens != inf:
                self._served.append(entry)
            start = starts.get(name, 0)
            if count == 1 and sequence.output:
                parts[2] += 1
                parts[3] += start + 1
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

    def computed(
        self, name: str, count: int, tokens: Sequence[int], step: float, now: float, *, ended: bool
    ) -> None:
        """Note what a step has computed of a request, and the tokens that it has drawn."""
        sequence = self._sequences.get(name)
        if sequence is None:
            return
        sequence.computed(count)
        sequence.served += step
        if tokens:
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
        if ended:
            self.policy.completed(sequence, now=now)
            self.went(name)
