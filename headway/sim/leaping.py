"""A decode batch on a simulated device: it knows the next event, and looks at no other request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from typing import NamedTuple

from headway.cost.pass_time import Share
from headway.forward_pass import PLAIN, PassItem, Sampled
from headway.request import StreamKey
from headway.sim.lengths import TrueLengths, steps_to_event, token_at


class _Member(NamedTuple):
    """A request, with its KV and output tokens at step 0 of the batch: it may have joined later."""

    unit: int
    kv_tokens: int
    num_drawn: int
    lengths: TrueLengths


class LeapingBatch:
    """Requests that draw a token a step, their work by DP unit, and the order of their events.

    ``blocks_per_unit`` tells an item's unit from its block table.
    """

    def __init__(self, blocks_per_unit: int, lengths: Mapping[StreamKey, TrueLengths]) -> None:
        self._blocks_per_unit = blocks_per_unit
        self._lengths = lengths
        self._members: dict[StreamKey, _Member] = {}
        self._units: dict[int, list[int]] = {}
        self._events: list[tuple[int, int, StreamKey]] = []
        self._step = 0
        self._num_pushed = 0  # breaks ties

    def __contains__(self, key: StreamKey) -> bool:
        return key in self._members

    @property
    def num_requests(self) -> int:
        """Number of requests."""
        return len(self._members)

    def shares(self) -> list[Share]:
        """Return each DP unit's share of the next step."""
        return [Share(0, 0, num, kv + num) for num, kv in self._units.values() if num]

    def join(self, items: Iterable[PassItem]) -> None:
        """Take in requests that each compute one token a step from now on."""
        for item in items:
            unit, lengths = item.block_table[0] // self._blocks_per_unit, self._lengths[item.key]
            num_drawn, step = item.num_output_tokens, self._step
            self._members[item.key] = _Member(unit, item.start - step, num_drawn - step, lengths)
            sums = self._units.setdefault(unit, [0, 0])
            sums[0] += 1
            sums[1] += item.start
            self._push(item.key, steps_to_event(lengths, num_drawn))

    def leave(self, keys: Iterable[StreamKey]) -> None:
        """Let go of requests that have ended."""
        for key in keys:
            member = self._members.pop(key)
            sums = self._units[member.unit]
            sums[0] -= 1
            sums[1] -= member.kv_tokens + self._step

    def steps_to_event(self) -> int:
        """Return the steps until a request ends its reasoning or its output."""
        while self._events[0][2] not in self._members:
            heappop(self._events)
        return self._events[0][0] - self._step

    def advance(self, num_steps: int) -> list[Sampled]:
        """Draw so many tokens for each; return those after which something ends."""
        self._step += num_steps
        for sums in self._units.values():
            sums[1] += num_steps * sums[0]
        sampled: list[Sampled] = []
        before = (PLAIN,) * (num_steps - 1)
        while self._events and self._events[0][0] <= self._step:
            key = heappop(self._events)[2]
            member = self._members.get(key)
            if member is not None:
                num_drawn = member.num_drawn + self._step
                sampled.append(Sampled(key, token_at(member.lengths, num_drawn), None, before))
                self._push(key, steps_to_event(member.lengths, num_drawn))
        return sampled

    def _push(self, key: StreamKey, num_steps: int) -> None:
        self._num_pushed += 1
        heappush(self._events, (self._step + num_steps, self._num_pushed, key))
