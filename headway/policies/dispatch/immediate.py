"""``immediate``: the baseline. Each request goes to an instance at once, whatever it is doing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from random import Random
from typing import ClassVar

from headway.bounds import Bounded, between, one_of, over
from headway.cluster import Role
from headway.policies.answer import Answer
from headway.policies.dispatch.protocol import Dispatching, InstanceLoad, Turn, Waiting

ROUND_ROBIN = "round-robin"
RANDOM = "random"
ON_SCHEDULE = "pascal"
_SCORES: Mapping[str, Callable[[InstanceLoad], int | tuple[bool, int]]] = {
    ROUND_ROBIN: lambda load: 0,
    "least-outstanding": attrgetter("num_outstanding"),
    "join-shortest-queue": attrgetter("num_queued"),
    "least-tokens": attrgetter("queued_tokens"),
    "least-kv": attrgetter("kv_tokens"),
    ON_SCHEDULE: lambda load: (not load.is_on_schedule, load.kv_tokens),
}


@dataclass(frozen=True, slots=True)
class ImmediateParams(Bounded):
    """``rule``: ``round-robin``, ``random``, ``least-outstanding`` (requests sent and not ended),
    ``join-shortest-queue`` (requests that do not run yet), ``least-tokens`` (prompt tokens not
    yet computed), ``least-kv`` (KV tokens in device and host memory) or ``pascal`` (the same among
    instances where no reader waits, if there are any: PASCAL, Algorithm 1).
    ``default_pass_time``: shown before the first pass, seconds. ``window``: passes. ``seed``: of
    the random rule. ``max_queued_requests`` and ``max_queued_tokens``: an instance with so many
    that do not run yet, or prompt tokens not yet computed, is given no more (vLLM's caps on its
    queue); 0 for no cap.
    """

    rule: str = one_of(*sorted([*_SCORES, RANDOM]), default=ROUND_ROBIN)
    default_pass_time: float = over(0, default=0.05)
    window: int = between(1, 100_000, default=32)
    seed: int = 0
    max_queued_requests: int = between(0, 1 << 30, default=0)
    max_queued_tokens: int = between(0, 1 << 40, default=0)


class Immediate(Dispatching):
    """Dispatch of each request at once, by the rule's score; C_avail is not asked.

    Ties go to the instance that was served longest ago.
    """

    holds_back: ClassVar[bool] = False

    def __init__(self, params: ImmediateParams | None = None) -> None:
        params = params or ImmediateParams()
        super().__init__(params.window, params.default_pass_time)
        self._rule = params.rule
        self.reads_phases = params.rule == ON_SCHEDULE
        self._rng = Random(params.seed)
        self._max_requests = params.max_queued_requests or inf
        self._max_tokens = params.max_queued_tokens or inf
        self._has_caps = min(self._max_requests, self._max_tokens) < inf
        self._served: dict[str, int] = {}  # the number of each instance's last turn
        self._turns: dict[str, Turn] = {}
        self._num_turns = 0

    def join(self, worker_id: str, role: Role = Role.PREFILL) -> None:
        """Add an instance to choose from."""
        self._served.setdefault(worker_id, 0)
        self._turns[worker_id] = Turn(worker_id, self._rule, max_requests=1, capped=False)

    def leave(self, worker_id: str) -> None:
        """Remove an instance."""
        self._served.pop(worker_id, None)
        self._turns.pop(worker_id, None)

    def dispatched(self, turn: Turn, dispatch_id: int, *, now: float) -> None:
        """Move the instance to the end of the round."""
        self._num_turns += 1
        self._served[turn.worker_id] = self._num_turns

    def turns(
        self,
        loads: Sequence[InstanceLoad],
        num_waiting: int,
        *,
        now: float,
        waiting: Collection[Waiting] = (),
    ) -> list[Turn]:
        """Return every instance with room, one request at a time."""
        able = [load for load in loads if load.has_room]
        if self._has_caps:
            able = [load for load in able if self._may_queue(load)]
        if self._rule == RANDOM:
            names = sorted(load.worker_id for load in able)
            self._rng.shuffle(names)
            return [self._turns[name] for name in names]
        score, served, turns = _SCORES[self._rule], self._served, self._turns
        ranked = sorted([(score(load), served[load.worker_id], load.worker_id) for load in able])
        return [turns[name] for _, _, name in ranked]

    def _may_queue(self, load: InstanceLoad) -> bool:
        return load.num_queued < self._max_requests and load.queued_tokens < self._max_tokens


ANSWER = Answer("immediate", Immediate, "the field's routers", ImmediateParams)
