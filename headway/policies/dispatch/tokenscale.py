"""``tokenscale``: an instance that meets the TTFT SLO, convertible decoders second.

TokenScale, algorithm 1 and section IV-E; ``docs/tokenscale.md`` says what the paper leaves open.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from operator import attrgetter

from headway.bounds import between, one_of, over
from headway.cluster import Role
from headway.cost.costs import Constant, Costs, Source
from headway.cost.schema import Profile, require_profile
from headway.cost.velocity import TPOT_SLO, convertible_velocity
from headway.policies.answer import Answer
from headway.policies.dispatch.feasibility import TtftSlos
from headway.policies.dispatch.protocol import Dispatching, InstanceLoad, Turn, Waiting
from headway.policies.readers import CostReader, chosen
from headway.request import StreamKey

PREFILLER, CONVERTIBLE, AVAILABLE = "prefiller", "convertible", "available"
FIRST, LEAST = "first", "least"


@dataclass(frozen=True, slots=True)
class TokenScaleRoutingParams(TtftSlos):
    """``prefill_tokens_per_s``: V_P of one prefiller; 0: the pool's, measured or by profile.

    ``profile``: its V_P while nothing else is known, and the TTFT SLOs' edges, its short and
    medium inputs. ``tpot_slo``: what a convertible decoder's passes may take, seconds. ``fit``:
    among feasible instances the one with the ``least`` work ahead, or the ``first`` by id.
    ``default_pass_time``: shown before the first pass, seconds. ``window``: passes.
    """

    profile: Profile | None = None
    prefill_tokens_per_s: float = between(0, 1e12, default=0.0)
    tpot_slo: float = over(0, default=TPOT_SLO)
    fit: str = one_of(FIRST, LEAST, default=LEAST)
    default_pass_time: float = over(0, default=0.05)
    window: int = between(1, 100_000, default=32)


@dataclass(slots=True)
class _Place:
    """An instance while requests are given out: tokens in flight and free, tokens/s."""

    worker_id: str
    velocity: float
    num_tokens: int
    num_free: int
    has_capacity: bool

    @property
    def ahead(self) -> float:
        """Seconds of prompts in flight."""
        return self.num_tokens / self.velocity if self.velocity > 0 else inf

    def time_for(self, num_tokens: int) -> float:
        """Seconds until such a prompt would be computed here."""
        if num_tokens > self.num_free or self.velocity <= 0:
            return inf
        return (self.num_tokens + num_tokens) / self.velocity

    def take(self, num_tokens: int) -> None:
        """Count a request that the next ones will see ahead of them."""
        self.num_tokens += num_tokens
        self.num_free -= num_tokens
        self.has_capacity = False


class TokenScaleRouting(Dispatching, CostReader):
    """Dispatch to an instance that meets the TTFT SLO: prefillers, then convertibles; else none.

    A burst request asks convertible decoders first. Who meets no SLO any more waits for a
    prefiller with capacity to spare, behind those that still can.
    """

    def __init__(self, params: TokenScaleRoutingParams | None = None) -> None:
        self._params = params = params or TokenScaleRoutingParams()
        super().__init__(params.window, params.default_pass_time)
        profile = require_profile("dispatch tokenscale", params.profile)
        self._short, self._medium, _ = profile.buckets.input_tokens
        self._assumed = Costs.of([(Role.UNIFIED, profile)])
        self._converted: Constant | None = None
        self.learn(Costs())

    # --- velocities -------------------------------------------------------------------

    def learn(self, costs: Costs) -> None:
        """Take V_P as given, as measured, or of the pool's profile."""
        given, assumed = self._params.prefill_tokens_per_s or None, _velocity(self._assumed)
        source = costs.source_of("prefill_tokens_per_s")
        self._prefill = chosen("V_P", given, _velocity(costs) or None, source, assumed)

    def constants(self) -> Sequence[Constant]:
        """Return V_P, and V_conv of the convertible decoder with the least, as of the last turn."""
        return (self._prefill, *([self._converted] if self._converted is not None else []))

    # --- routing ----------------------------------------------------------------------

    def ttft_slo(self, num_tokens: int) -> float:
        """Return the TTFT SLO of a prompt, seconds."""
        return self._params.ttft_slo(num_tokens, self._short, self._medium)

    def turns(
        self,
        loads: Sequence[InstanceLoad],
        num_waiting: int,
        *,
        now: float,
        waiting: Collection[Waiting] = (),
    ) -> list[Turn]:
        """Return a turn for each instance that is given requests, with their keys."""
        self._converted = None
        able = [load for load in loads if load.has_room]
        if self._params.fit == FIRST:
            able.sort(key=attrgetter("worker_id"))
        prefillers = [self._place(load) for load in able if load.role is not Role.CONVERTIBLE]
        convertibles = [self._place(load) for load in able if load.role is Role.CONVERTIBLE]
        given: dict[tuple[str, str], list[StreamKey]] = {}
        queued: list[Waiting] = []
        least_ahead = min((place.ahead for place in (*prefillers, *convertibles)), default=inf)
        for request in waiting:
            planned = self.ttft_slo(request.num_tokens) * (1 - self._params.margin)
            left = planned - max(0.0, now - request.arrival_at)
            rounds = [(PREFILLER, prefillers), (CONVERTIBLE, convertibles)]
            if request.is_burst:
                rounds.reverse()
            if left < least_ahead or not self._route(request, rounds, given, left):
                queued.append(request)
        self._give_to_available(queued, prefillers or convertibles, given)
        return [
            Turn(worker_id, rule, capped=False, keys=keys)
            for (worker_id, rule), keys in given.items()
        ]

    def _place(self, load: InstanceLoad) -> _Place:
        """The convertible's velocity is what its decode batch leaves of the chunk (equation 5)."""
        velocity = self._prefill.value
        if load.role is Role.CONVERTIBLE:
            tpot = self._params.tpot_slo
            velocity = convertible_velocity(load.chunk_tokens, load.num_decoding, tpot)
            if self._converted is None or velocity < self._converted.value:
                self._converted = Constant("V_conv", velocity, Source.MEASURED)
        return _Place(
            load.worker_id, velocity, load.queued_tokens, load.free_tokens, load.has_capacity
        )

    def _route(
        self,
        request: Waiting,
        rounds: Iterable[tuple[str, Sequence[_Place]]],
        given: dict[tuple[str, str], list[StreamKey]],
        left: float,
    ) -> bool:
        """Algorithm 1: (in flight + its own tokens) / V within what is left of its SLO."""
        num_tokens = request.num_tokens
        for rule, places in rounds:
            feasible = (place for place in places if place.time_for(num_tokens) <= left)
            if self._params.fit == LEAST:
                place = min(
                    feasible, key=lambda p: (p.time_for(num_tokens), p.worker_id), default=None
                )
            else:
                place = next(feasible, None)
            if place is not None:
                place.take(num_tokens)
                given.setdefault((place.worker_id, rule), []).append(request.key)
                return True
        return False

    def _give_to_available(
        self,
        queued: Sequence[Waiting],
        places: Sequence[_Place],
        given: dict[tuple[str, str], list[StreamKey]],
    ) -> None:
        """Give each instance with capacity a queued request: oldest first, least work first."""
        free = sorted(
            (place for place in places if place.has_capacity),
            key=lambda place: (place.ahead, place.worker_id),
        )
        for request in queued:
            if not free:
                return
            place = next((p for p in free if request.num_tokens <= p.num_free), None)
            if place is not None:
                free.remove(place)
                given.setdefault((place.worker_id, AVAILABLE), []).append(request.key)


def _velocity(costs: Costs) -> float:
    """Return ``min(V_P, V_N)``, tokens/s (equation 2); an unknown V_N is no limit."""
    return min(costs.prefill_tokens_per_s, costs.network_tokens_per_s or inf)


ANSWER = Answer("tokenscale", TokenScaleRouting, "TokenScale, algorithm 1", TokenScaleRoutingParams)
