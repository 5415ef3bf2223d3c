"""Requests that draw one token in every step: counted by the step, looked at when it matters.

A step of decoding changes the same numbers of each request. So a step goes into a log once, and a
request's own numbers follow when something asks for them: its rank, a preemption, its end. They
are then what they would be had they been kept step by step, to the last bit. Joining and leaving
cost what changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

from headway.core.reasoning import Markers
from headway.core.worker import sequence as candidates
from headway.core.worker.lifecycle import Stage
from headway.core.worker.reading import Readers, ReadTokens
from headway.forward_pass import PLAIN
from headway.policies.batching.protocol import Batching, C, Ranked
from headway.policies.batching.queue import Entry
from headway.request import StreamKey

_LONGEST_LOG = 1024
"""Steps after which the log's beginning is dropped."""
_LOOK_AGAIN = 64
"""Steps after which a request is looked at in any case, and up to as many more: not all at once."""


class StepOutput(Protocol):
    """A request after a step, as vLLM tells."""

    @property
    def request_id(self) -> str:
        """The request's name."""

    @property
    def new_token_ids(self) -> Sequence[int]:
        """The tokens that it drew."""

    @property
    def finish_reason(self) -> object | None:
        """None if it goes on."""


class Apart(NamedTuple):
    """A step's part of a request that is not counted by the step."""

    name: str
    num_tokens: int
    drawn: Sequence[int]
    ended: bool


class Followed:
    """A request of vLLM, as the policy sees it."""

    __slots__ = ("due", "entry", "name", "sequence", "step")

    def __init__(
        self,
        name: str,
        sequence: candidates.Sequence,
        entry: Entry[candidates.Sequence],
    ) -> None:
        self.name = name
        self.sequence = sequence
        self.entry = entry
        self.step = 0
        """Step of the last look at it, while it is steady."""
        self.due = 0.0
        """Step of the next one."""


class SteadyRequests:
    """The requests whose numbers follow from the log; the numbers of all others are their own."""

    def __init__(self, readers: Readers, markers: Markers) -> None:
        self._readers = readers
        self._decided_at = markers.decided_at
        self._end = markers.end[0] if len(markers.end) == 1 else None
        """The token that ends reasoning; None: whoever reasons is not steady."""
        self._members: dict[str, Followed] = {}
        self._by_key: dict[StreamKey, Followed] = {}
        self._log: list[ReadTokens] = []
        self._first = self._step = 0  # of the log's first step, and of the next one
        self._due: list[tuple[float, str]] = []

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def __len__(self) -> int:
        return len(self._members)

    def find(self, key: StreamKey) -> Followed | None:
        """Return a steady request."""
        return self._by_key.get(key)

    # --- joining and leaving ----------------------------------------------------------

    def join(self, followed: Followed) -> None:
        """Take in a request that has just drawn one token, if it may go on so."""
        sequence = followed.sequence
        if sequence.stage is not Stage.RUNNING:
            return
        if sequence.reader.answer_start is None and (
            self._end is None or len(sequence.output) < self._decided_at
        ):
            return  # each of its tokens may tell where the answer begins
        followed.step = self._step
        self._members[followed.name] = self._by_key[sequence.key] = followed
        self.schedule_check(followed, followed.entry.until_tokens)

    def leave(self, name: str) -> None:
        """Let go of a request, if it is here, with its numbers as of the last step."""
        followed = self._members.pop(name, None)
        if followed is not None:
            self.sync(followed)
            del self._by_key[followed.sequence.key]

    # --- steps ------------------------------------------------------------------------

    def leavers(self, counts: Mapping[str, int], drawn: Sequence[StepOutput]) -> list[Apart]:
        """Let go of those that a step does not let go on; return what is to be counted apart.

        ``counts``: the tokens that the step computed of each request; ``drawn``: of those that
        drew some.
        """
        members, end = self._members, self._end
        odd = [
            out.request_id
            for out in drawn
            if len(tokens := out.new_token_ids) != 1
            or tokens[0] == end
            or out.finish_reason is not None
            or out.request_id not in members
        ]
        if not odd and len(members) == len(counts) == len(drawn) == sum(counts.values()):
            return []
        outs, unsteady = {out.request_id: out for out in drawn}, set(odd)
        names = [
            name
            for name, count in counts.items()
            if count != 1 or name in unsteady or name not in outs
        ]
        for name in names:
            self.leave(name)
        if len(members) != len(counts) - len(names):
            for name in members.keys() - counts.keys():
                self.leave(name)
        return [_apart(name, counts[name], outs.get(name)) for name in names]

    def passed(self, step: float, now: float) -> None:
        """Note a step of so many seconds, in which each steady request drew a token."""
        self._log.append(ReadTokens(1, step, now))
        self._step += 1
        if len(self._log) >= _LONGEST_LOG:
            least = min((each.step for each in self._members.values()), default=self._step)
            del self._log[: least - self._first]
            self._first = least

    def apart(self, counts: Mapping[str, int]) -> list[str]:
        """Return those of a planned step that do not compute one token as ever."""
        members = self._members
        return [name for name, count in counts.items() if count != 1 or name not in members]

    # --- looking at requests ----------------------------------------------------------

    def due(self) -> Iterator[Entry[candidates.Sequence]]:
        """Yield those whose place is over by their tokens."""
        heap = self._due
        while heap and heap[0][0] <= self._step:
            at, name = heappop(heap)
            followed = self._members.get(name)
            if followed is None or followed.due != at:
                continue
            self.sync(followed)
            if followed.sequence.attained_tokens >= followed.entry.until_tokens:
                yield followed.entry
            else:
                self.schedule_check(followed, followed.entry.until_tokens)

    def schedule_check(self, followed: Followed, until_tokens: float) -> None:
        """Look at it again when its rank may be over; it attains at most one token a step."""
        latest = _LOOK_AGAIN + followed.sequence.key.stream_id % _LOOK_AGAIN
        left = max(1, until_tokens - followed.sequence.attained_tokens)
        followed.due = followed.step + min(left, latest)
        heappush(self._due, (followed.due, followed.name))

    def sync(self, followed: Followed) -> None:
        """Let its numbers be as of the last step."""
        passes = self._log[followed.step - self._first :]
        if not passes:
            return
        sequence, num_tokens = followed.sequence, len(passes)
        followed.step = self._step
        sequence.computed(num_tokens)
        sequence.output.extend([PLAIN] * num_tokens)
        served = sequence.served
        for _, step, _ in passes:
            served += step
        sequence.served = served
        self._readers.read_on(sequence, passes)


class PolicyAsked(Batching):
    """A policy that is asked about steady requests as they are after the last step."""

    def __init__(self, policy: Batching, steady: SteadyRequests) -> None:
        self._policy = policy
        self._steady = steady

    @property
    def epoch(self) -> int:
        """See ``Batching.epoch``."""
        return self._policy.epoch

    def rank(self, candidate: C, *, now: float) -> Ranked:
        """See ``Batching.rank``."""
        followed = self._steady.find(candidate.key)
        if followed is None:
            return self._policy.rank(candidate, now=now)
        self._steady.sync(followed)
        ranked = self._policy.rank(candidate, now=now)
        self._steady.schedule_check(followed, ranked.until_tokens)
        return ranked


def _apart(name: str, count: int, out: StepOutput | None) -> Apart:
    if out is None:
        return Apart(name, count, (), False)
    return Apart(name, count, out.new_token_ids, out.finish_reason is not None)
