"""``pbaa``: Prioritized Batch Allocation (Algorithm 2 of Staggered Batch Scheduling).

Without KV room for a request a unit is no candidate for it; that is ours, the paper's devices
never run out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from headway.bounds import Bounded, between, one_of, over
from headway.cluster import UnitId
from headway.cost.costs import Constant, Costs, Source
from headway.policies.answer import Answer
from headway.policies.batching.boost import boosted
from headway.policies.packing.protocol import ANY_UNIT, NO_HITS, Assigned, Hits, P, Room
from headway.policies.readers import CostReader, GammaReader, chosen
from headway.request import StreamKey

LONGEST, BOOST, READERS = "longest", "boost", "readers"
_GAMMA, _PER_TOKEN = 0.5, 1e-4
"""While nothing is known, 1/s and seconds."""


@dataclass(frozen=True, slots=True)
class PbaaParams(Bounded):
    """``order``: who is packed first. ``longest`` as printed, requests left over from earlier
    cycles before new ones; ``boost`` by Φ of the prompt, least first, in which leftovers age by
    themselves; ``readers`` the same, but first those whose readers wait for the first token.
    ``gamma``: γ of that, 1/s; None: the pool's, as fitted for its workers, and 0.5 before.
    ``seconds_per_token``: of prefill, a prompt token's part of the pool's time; None: as its
    passes cost, by profile or measured.
    """

    order: str = one_of(LONGEST, BOOST, READERS, default=LONGEST)
    gamma: float | None = between(1e-9, 1e9, default=None)
    seconds_per_token: float | None = over(0, 1, default=None)


class Pbaa(CostReader, GammaReader):
    """Two greedy passes, legacy first; each longest first, into the emptiest unit."""

    def __init__(self, params: PbaaParams | None = None) -> None:
        self._params = params or PbaaParams()
        self._gamma = chosen("γ", self._params.gamma, None, Source.DEFAULT, _GAMMA)
        self.learn(Costs())

    def learn(self, costs: Costs) -> None:
        """Take the seconds of a prompt token."""
        known, source = costs.prefill_per_token or None, costs.source_of("prefill_per_token")
        given = self._params.seconds_per_token
        self._per_token = chosen("prompt token", given, known, source, _PER_TOKEN)

    def tune(self, gamma: float, source: Source) -> None:
        """Take the pool's γ, unless one was given."""
        self._gamma = chosen("γ", self._params.gamma, gamma, source, _GAMMA)

    def constants(self) -> Sequence[Constant]:
        """Return what Φ uses; the printed order uses nothing."""
        return () if self._params.order == LONGEST else (self._gamma, self._per_token)

    def _in_order(self, requests: Sequence[P]) -> list[P]:
        if self._params.order == LONGEST:
            return _longest_first(requests)
        gamma, seconds = self._gamma.value, self._per_token.value
        reads = self._params.order == READERS
        return sorted(
            requests,
            key=lambda r: (
                reads and not r.opens_answer,
                boosted(r.arrival_at, max(1, r.num_tokens) * seconds, gamma),
                r.key,
            ),
        )

    def pack(
        self,
        legacy: Sequence[P],
        new: Sequence[P],
        rooms: Sequence[Room],
        *,
        hits: Hits[P] | None = None,
        capped: bool = True,
        own: Mapping[StreamKey, UnitId] = ANY_UNIT,
    ) -> list[Assigned[P]]:
        """Basic mode, or cache-aware where hits are given."""
        if self._params.order != LONGEST:
            legacy, new = (), [*legacy, *new]
        # In an overload thousands wait, and few of them fit: only those are put in order.
        most = max(
            (room.most_tokens for room in rooms if room.capacity > 0 or not capped), default=-1
        )
        legacy, new = (
            self._in_order([each for each in waiting if each.num_tokens <= most])
            for waiting in (legacy, new)
        )
        by_unit = {room.unit: room for room in rooms}
        heap = [(-room.capacity, room.unit) for room in rooms]
        heapify(heap)
        if hits is not None or own:
            hits = hits or (lambda request: NO_HITS)
            return [
                *_pack_by_hits(legacy, by_unit, heap, hits, capped, own),
                *_pack_by_hits(new, by_unit, heap, hits, capped, own),
            ]
        return [*_pack(legacy, by_unit, heap, capped), *_pack(new, by_unit, heap, capped)]


def _longest_first(requests: Iterable[P]) -> list[P]:
    return sorted(requests, key=lambda r: (-r.num_tokens, r.arrival_at, r.key))


def _pack(
    requests: Sequence[P],
    rooms: dict[UnitId, Room],
    heap: list[tuple[int, UnitId]],
    capped: bool,
) -> list[Assigned[P]]:
    """GreedyDispatch, ``Capacity = C_avail - len(r)``: the heap's top is the best unit for all."""
    assigned: list[Assigned[P]] = []
    for request in requests:
        if not heap or (capped and heap[0][0] >= 0):
            break  # no unit has C_avail > 0: everybody else waits, too
        full: list[tuple[int, UnitId]] = []
        while heap and not rooms[heap[0][1]].fits(request.num_tokens):
            full.append(heappop(heap))
        if heap and (not capped or heap[0][0] < 0):
            room = rooms[heappop(heap)[1]]
            room.take(request.num_tokens, room.capacity - request.num_tokens)
            heappush(heap, (-room.capacity, room.unit))
            assigned.append(Assigned(request, room.unit, room.capacity))
        for entry in full:
            heappush(heap, entry)
    return assigned


def _pack_by_hits(
    requests: Sequence[P],
    rooms: dict[UnitId, Room],
    heap: list[tuple[int, UnitId]],
    hits: Hits[P],
    capped: bool,
    own: Mapping[StreamKey, UnitId],
) -> list[Assigned[P]]:
    """GreedyDispatch, ``Capacity = C_avail - (len(r) - hit(r, d))``.

    Units without a hit are best in the heap's order; those with one are looked at beside its top.
    A request with an own unit waits for that one.
    """
    assigned: list[Assigned[P]] = []
    for request in requests:
        length, aside = request.num_tokens, list[tuple[int, UnitId]]()
        best: tuple[int, UnitId] | None = None
        mine = own.get(request.key)
        while heap and best is None and mine is None:
            negative, unit = heappop(heap)
            room = rooms[unit]
            if -negative != room.capacity:
                continue  # it has been given something since
            aside.append((negative, unit))
            if room.fits(length):
                best = length - room.capacity, unit
        held = hits(request)
        for unit in held if mine is None else (mine,):
            candidate, hit = rooms.get(unit), held.get(unit, 0)
            if candidate is None or (hit <= 0 and mine is None):
                continue
            rank = length - min(hit, length) - candidate.capacity, unit
            if (best is None or rank < best) and candidate.fits(length):
                best = rank
        for entry in aside:
            heappush(heap, entry)
        if best is None or (capped and rooms[best[1]].capacity <= 0):
            continue
        chosen = rooms[best[1]]
        chosen.take(length, -best[0])
        heappush(heap, (-chosen.capacity, chosen.unit))
        assigned.append(Assigned(request, chosen.unit, chosen.capacity))
    return assigned


ANSWER = Answer("pbaa", Pbaa, "SBS, Algorithm 2; cache-aware where hits are known", PbaaParams)
