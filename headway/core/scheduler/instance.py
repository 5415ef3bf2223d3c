"""One worker as the scheduler sees it: its last report, and everything sent since."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from headway.blocks import blocks_for
from headway.cluster import Role, UnitId, UnitLoad, WorkerInfo
from headway.core.scheduler.ahead import Foresight
from headway.core.scheduler.flights import Flights, FlyingDispatch
from headway.cost.velocity import LimitsInForce, TokenLimits, memory_for_prompts
from headway.messages import Dispatch, EndForward, LoadReport, UnitBatch
from headway.policies.dispatch import InstanceLoad
from headway.policies.dispatch.protocol import UnitDebt
from headway.policies.packing import Room
from headway.policies.placement import DecodeUnit
from headway.policies.placement.ahead import LoadAhead
from headway.policies.rescheduling import Horizon
from headway.request import Request, StreamKey

NOTHING: Mapping[StreamKey, int] = MappingProxyType({})
NO_CLAIMS: Mapping[str, int] = MappingProxyType({})
MOST_HELD = 32_768
"""Requests that one worker may hold by its own word: each costs the leader a kilobyte, and 40 µs
when the worker is gone."""


@dataclass(slots=True)
class _Inbound:
    """KV that is moving to a unit; once ``landed``, the unit's next report includes it."""

    unit: int
    num_tokens: int
    landed: bool = False


class _Held(NamedTuple):
    """A request of the ledger: its unit, whom it counts for, and the blocks of its prompt."""

    unit: int
    tenant: str
    num_blocks: int


@dataclass(frozen=True, slots=True)
class UnitState:
    """One row of the state matrix: C_avail in tokens, B in requests, K in tokens."""

    unit: UnitId
    capacity: int
    num_requests: int
    kv_tokens: int
    num_free_blocks: int


class Instance:
    """The ledger of one connected worker.

    ``max_request_tokens``: prompt and output of the longest request it could ever hold.
    """

    def __init__(
        self, info: WorkerInfo, kv_watermark: float, limits: LimitsInForce | None = None
    ) -> None:
        self.info = info
        self._limits = limits or LimitsInForce(TokenLimits())
        self.max_request_tokens = min(info.max_model_len, info.num_blocks * info.block_size)
        self.draining = False
        self.has_changed = False  # changed its role; it may hold requests of the old one
        self._busy_since = -inf
        self._num_computed = self._pass_id = 0  # prompt tokens since then; the last pass with some
        self._keys: dict[StreamKey, _Held] = {}
        self._num_held = Counter[int]()  # by unit
        self._claims: dict[int, dict[str, int]] = {}  # blocks by unit and tenant
        self._prompts: dict[StreamKey, int] = {}  # uncached tokens, until they are computed
        self._lengths: dict[int, list[int]] = {}  # the same by unit, least first
        self.watchers: list[dict[str, None]] = []  # who keep views; ids of changed instances
        self._load: InstanceLoad | None = None
        self._left: list[tuple[int, int]] = []
        self._decode_units: list[DecodeUnit] = []
        self._num_spare_blocks = int(kv_watermark * info.num_blocks)
        self.loads = [UnitLoad(u, 0, 0, 0, info.num_blocks) for u in range(info.num_units)]
        self._flights = Flights(info.num_units)
        self._inbound: dict[StreamKey, _Inbound] = {}
        self._foresight = Foresight()
        self._finished: deque[tuple[float, StreamKey]] = deque(maxlen=1024)

    # --- description ------------------------------------------------------------------

    @property
    def takes_prefill(self) -> bool:
        """True if it takes requests from the window."""
        return self.info.role.prefills and not self.draining

    @property
    def takes_decode(self) -> bool:
        """True if prefilled requests may be handed to it."""
        return self.info.role.decodes and not self.draining

    def could_hold(self, request: Request) -> bool:
        """Return whether it could serve its part of the request if it were empty."""
        if not self.info.has_adapter(request.adapter):
            return False
        if self.info.role.decodes:
            return total_tokens(request) <= self.max_request_tokens
        return request.num_tokens < self.max_request_tokens

    # --- the ledger -------------------------------------------------------------------

    @property
    def keys(self) -> list[StreamKey]:
        """Return the requests that it has or that were dispatched to it."""
        return list(self._keys)

    @property
    def is_full_of_claims(self) -> bool:
        """True if it holds as many requests as are believed of one worker."""
        return len(self._keys) >= MOST_HELD

    def hold(self, key: StreamKey, unit: int, tenant: str = "", num_tokens: int = 0) -> None:
        """Add a request of a unit, or count it for another ``tenant``."""
        self._take_out(key)
        num_blocks = max(1, blocks_for(num_tokens, self.info.block_size))
        self._keys[key] = _Held(unit, tenant, num_blocks)
        self._num_held[unit] += 1
        claims = self._claims.setdefault(unit, {})
        claims[tenant] = claims.get(tenant, 0) + num_blocks
        self.changed()

    def _take_out(self, key: StreamKey) -> None:
        held = self._keys.pop(key, None)
        if held is None:
            return
        unit, tenant, num_blocks = held
        self._num_held[unit] -= 1
        claims = self._claims[unit]
        claims[tenant] -= num_blocks
        if not claims[tenant]:
            del claims[tenant]
        self._forget_prompt(key, unit)

    def _forget_prompt(self, key: StreamKey, unit: int) -> None:
        if (length := self._prompts.pop(key, None)) is not None:
            lengths = self._lengths[unit]
            del lengths[bisect_left(lengths, length)]

    def begun(self, key: StreamKey) -> None:
        """Note that a request's prompt is computed, and that it decodes here."""
        if (held := self._keys.get(key)) is not None:
            self._forget_prompt(key, held.unit)
            self.changed()

    def claims(self, unit: int) -> Mapping[str, int]:
        """Return the blocks that prompts of requests here need, by tenant."""
        return self._claims.get(unit, NO_CLAIMS)

    def let_go(self, key: StreamKey) -> None:
        """Remove a request that has ended or is elsewhere."""
        self._take_out(key)
        self._foresight.drop(key)
        self.changed()

    def take_back(self, key: StreamKey, unit: int, num_tokens: int) -> None:
        """Remove a queued request, and its uncached tokens from the backlog."""
        if not self._flights.take_back(key, unit, num_tokens):
            load = self.loads[unit]
            queued = max(0, load.queued_prefill_tokens - num_tokens)
            self.loads[unit] = replace(load, queued_prefill_tokens=queued)
        self.let_go(key)

    def change_role(self, info: WorkerInfo) -> None:
        """Take another role, and keep the ledger."""
        self.info, self.has_changed = info, True
        self.changed()

    def sent(
        self, dispatch: Dispatch, *, now: float, cached: Mapping[StreamKey, int] = NOTHING
    ) -> None:
        """Book a dispatch: U_flight without the tokens that are ``cached`` there, and KV blocks."""
        tokens: dict[int, int] = {}
        blocks: dict[int, int] = {}
        for batch in dispatch.batches:
            lengths = [request.num_tokens for request in batch.requests]
            num_cached = sum([cached.get(request.key, 0) for request in batch.requests])
            tokens[batch.unit] = sum(lengths) - num_cached
            blocks[batch.unit] = sum(blocks_for(n, self.info.block_size) for n in lengths)
            if self.info.role in (Role.PREFILL, Role.UNIFIED):
                self._note_prompts(batch, cached)
        keys = frozenset(r.key for batch in dispatch.batches for r in batch.requests)
        self._flights.add(dispatch.dispatch_id, FlyingDispatch(now, keys, tokens, blocks))
        self.changed()

    def _note_prompts(self, batch: UnitBatch, cached: Mapping[StreamKey, int]) -> None:
        lengths = self._lengths.setdefault(batch.unit, [])
        for request in batch.requests:
            num_tokens = request.num_tokens - cached.get(request.key, 0)
            self._prompts[request.key] = num_tokens
            insort(lengths, num_tokens)

    def accepted(self, dispatch_id: int, *, now: float) -> float | None:
        """Turn U_flight into R_queued; return the round trip (s), None if late or repeated."""
        was_idle = not self.has_backlog
        flight = self._flights.accept(dispatch_id)
        if flight is None:
            return None
        if was_idle:
            self._busy_since, self._num_computed = now, 0
        self.changed()
        return None if flight.lapsed else now - flight.sent_at

    @property
    def not_taken(self) -> Collection[StreamKey]:
        """The requests whose dispatch awaits its acknowledgement."""
        return self._flights.not_taken

    def reset_in_flight(self) -> None:
        """Stop counting tokens that were dispatched but not reported (the watchdog's reset)."""
        self._flights.lapse()
        self.changed()

    def report(self, loads: Iterable[UnitLoad], *, now: float) -> None:
        """Take a load report, which includes everything accepted or landed before it.

        Ignore units that the worker does not have.
        """
        was_idle = not self.has_backlog
        for load in loads:
            if not 0 <= load.unit < len(self.loads):
                continue
            self._num_computed += self._queued(load.unit) - load.queued_prefill_tokens
            self.loads[load.unit] = load
        if was_idle:
            self._busy_since, self._num_computed = now, 0
        self._flights.forget_accepted()
        self._inbound = {k: i for k, i in self._inbound.items() if not i.landed}
        self.changed()

    def velocity(self, report: EndForward, *, now: float) -> float:
        """Return the prompt tokens/s since the last pass with some, by a report taken; 0 for none.

        Where passes between went unreported, all the time counts in which it had prompts.
        """
        busy, num_computed = report.pass_time, self._num_computed
        if report.pass_id > self._pass_id + 1:
            busy = max(busy, now - self._busy_since)
        self._pass_id = report.pass_id
        if num_computed <= 0:
            return 0.0
        self._busy_since, self._num_computed = now, 0
        return num_computed / busy

    def foresee(self, report: LoadReport) -> None:
        """Take the loads that its units will have."""
        self._foresight.report(report, [k for k, i in self._inbound.items() if not i.landed])
        self.changed()

    def ahead(self, unit: DecodeUnit, horizon: Horizon) -> LoadAhead:
        """Return a unit's predicted load, with requests on their way."""
        return self._foresight.of(unit.unit.unit, unit.load_tokens, horizon)

    def reserve(self, key: StreamKey, unit: int, num_tokens: int, remaining: float = 0.0) -> None:
        """Reserve room for a handoff to one of its units; ``remaining`` output tokens are to come.

        0 where that is unknown.
        """
        self._foresight.add(key, unit, num_tokens, remaining)
        self._inbound[key] = _Inbound(unit, num_tokens)
        self.changed()

    def release(self, key: StreamKey) -> None:
        """Release the room of a handoff that failed."""
        self._inbound.pop(key, None)
        self._foresight.drop(key)
        self.changed()

    def landed(self, key: StreamKey) -> None:
        """Note that a handoff has landed; its blocks stay reserved until the next report."""
        inbound = self._inbound.get(key)
        if inbound is not None:
            inbound.landed = True

    @property
    def unreported(self) -> set[StreamKey]:
        """The requests that a report may not include yet."""
        return {*self._inbound, *self.not_taken}

    def inbound_tokens(self, unit: int) -> int:
        """Return the tokens whose KV is moving to a unit."""
        return sum(self._inbound_to(unit))

    def _inbound_to(self, unit: int) -> list[int]:
        return [i.num_tokens for i in self._inbound.values() if i.unit == unit]

    @property
    def inbound_keys(self) -> list[StreamKey]:
        """Return the requests whose KV is moving here."""
        return list(self._inbound)

    def finished(self, key: StreamKey, *, now: float) -> None:
        """Remove a request that the worker reports as ended."""
        self._finished.append((now, key))
        self.let_go(key)

    def finished_since(self, since: float) -> list[StreamKey]:
        """Return requests that have just finished; their last tokens may still be in flight."""
        return [key for at, key in self._finished if at >= since]

    # --- views for policies -----------------------------------------------------------

    def changed(self) -> None:
        """Note a change of what views show, in this ledger or beside it."""
        self._load, self._left, self._decode_units = None, [], []
        for watcher in self.watchers:
            watcher[self.info.worker_id] = None

    def _queued(self, unit: int) -> int:
        """Return R_queued in tokens: the reported backlog and everything acknowledged since."""
        flying = self._flights.units[unit]
        return self.loads[unit].queued_prefill_tokens + flying.accepted_tokens

    def _remaining(self) -> list[tuple[int, int]]:
        """Return C_avail in tokens and the free KV blocks of every unit; cached until a change.

        ``C_avail = C_chunk − U_flight − R_queued``, negative if the backlog exceeds a pass; a
        convertible's chunk also holds its decode batch B. Blocks that queued, dispatched and
        arriving requests will need are not free.
        """
        if not self._left:
            chunk, size = self.info.turn_tokens, self.info.block_size
            queued = [load.queued_prefill_tokens for load in self.loads]
            tokens = [
                chunk - num_tokens - self._decode_batch(load)
                for load, num_tokens in zip(self.loads, queued, strict=True)
            ]
            blocks = [
                x.num_free_blocks - blocks_for(n, size)
                for x, n in zip(self.loads, queued, strict=True)
            ]
            for unit, flying in enumerate(self._flights.units):
                blocks[unit] -= flying.blocks
                tokens[unit] -= flying.tokens
            wanted: dict[int, int] = {}
            for inbound in self._inbound.values():
                num_blocks = blocks_for(inbound.num_tokens, size)
                wanted[inbound.unit] = wanted.get(inbound.unit, 0) + num_blocks
            for unit, num_blocks in wanted.items():  # those that arrive have theirs
                known = blocks_for(self.loads[unit].arriving_tokens, size)
                blocks[unit] -= max(0, num_blocks - known)
            self._left = list(zip(tokens, blocks, strict=True))
        return self._left

    def _decode_batch(self, load: UnitLoad) -> int:
        """Return B, the tokens that decoding takes of a convertible's chunk; 0 elsewhere."""
        return load.num_running if self.info.role is Role.CONVERTIBLE else 0

    def _reserved_tokens(self, load: UnitLoad) -> float:
        """Return M of a convertible's unit, tokens (equation 6); at most half of its KV."""
        if self.info.role is not Role.CONVERTIBLE:
            return 0.0
        info = self.info
        batch, capacity = self._decode_batch(load), info.num_blocks * info.block_size
        return memory_for_prompts(info.turn_tokens, batch, capacity, self._limits.now)

    def is_open(self, unit: int) -> bool:
        """Return whether a unit takes more decode work."""
        return self.takes_decode and self.decode_units()[unit].is_open

    def capacity(self, unit: int) -> int:
        """Return C_avail, tokens."""
        return self._remaining()[unit][0]

    def num_free_blocks(self, unit: int) -> int:
        """Return the free KV blocks that no known request will need."""
        return self._remaining()[unit][1]

    def room(self, unit: int) -> Room:
        """Return a unit as a packing policy sees it."""
        free = self.num_free_blocks(unit)
        return Room(
            UnitId(self.info.worker_id, unit),
            self.capacity(unit),
            free,
            self._num_spare_blocks,
            self.info.block_size,
            empty=free == self.info.num_blocks,
        )

    def yielding(self, unit: int) -> tuple[int, int]:
        """Return the tokens of C_avail and the KV blocks that a reader's first token finds beside.

        Prompts that it passes count in neither, and requests that it preempts have blocks for it.
        """
        load, size = self.loads[unit], self.info.block_size
        queued = load.queued_prefill_tokens
        num_tokens = min(load.yielding_tokens, queued)
        passed = blocks_for(queued, size) - blocks_for(queued - num_tokens, size)
        return num_tokens, passed + load.num_yielding_blocks

    def rooms(self) -> list[Room]:
        """Return all units as a packing policy sees them."""
        return [self.room(unit) for unit in range(self.info.num_units)]

    def decode_units(self) -> Sequence[DecodeUnit]:
        """Return all units as a placement policy sees them: B and K, with requests on their way.

        One that the worker reports as arriving counts once.
        """
        if not self._decode_units:
            self._decode_units = [self._decode_unit(*each) for each in enumerate(self.loads)]
        return self._decode_units

    def _decode_unit(self, unit: int, load: UnitLoad) -> DecodeUnit:
        inbound = self._inbound_to(unit)
        return DecodeUnit(
            UnitId(self.info.worker_id, unit),
            load.num_running + max(0, len(inbound) - load.num_arriving),
            load.kv_tokens + max(0, sum(inbound) - load.arriving_tokens),
            self.num_free_blocks(unit),
            self.info.num_blocks,
            self.info.block_size,
            load.host_tokens + load.lost_tokens,
            load.num_reasoning,
            load.num_fresh_answering,
            load.is_on_schedule,
            is_convertible=self.info.role is Role.CONVERTIBLE,
            reserved_tokens=self._reserved_tokens(load),
        )

    def matrix(self) -> list[UnitState]:
        """Return all units as rows of the state matrix."""
        return [
            UnitState(d.unit, self.capacity(unit), d.num_requests, d.kv_tokens, d.num_free_blocks)
            for unit, d in enumerate(self.decode_units())
        ]

    @property
    def has_backlog(self) -> bool:
        """True if a pass that ends now had prompt tokens to compute."""
        return any(self._queued(unit) > 0 for unit in range(self.info.num_units))

    @property
    def load(self) -> InstanceLoad:
        """The instance as a dispatch policy sees it."""
        if self._load is None:
            self._load = self._compute_load()
        return self._load

    def _compute_load(self) -> InstanceLoad:
        rooms = self.rooms()
        beside = [self.yielding(load.unit) for load in self.loads]
        queued = sum(load.queued_prefill_tokens for load in self.loads)
        num_running = sum(load.num_running for load in self.loads)
        in_flight = self._flights.num_tokens
        chunk = self.info.turn_tokens
        units = [
            UnitDebt(
                room.unit,
                chunk - room.capacity - self._decode_batch(load),
                self._num_held[load.unit],
                room.capacity,
                room.most_tokens,
                load.num_running,
                (self.info.num_blocks - room.num_free_blocks) * room.block_size,
                self.info.num_blocks * room.block_size,
                self._lengths.get(load.unit, ()),
                num_blocks * room.block_size,
            )
            for room, load, (_, num_blocks) in zip(rooms, self.loads, beside, strict=True)
        ]
        return InstanceLoad(
            self.info.worker_id,
            task_depth=queued + len(self._flights),
            queued_tokens=sum([unit.num_tokens for unit in units]),
            num_outstanding=len(self._keys),
            num_queued=max(len(self._keys) - num_running, 0),
            has_capacity=any(room.capacity > 0 for room in rooms),
            has_room=any(room.num_free_blocks > 0 for room in rooms),
            role=self.info.role,
            num_decoding=num_running,
            free_tokens=max([unit.free_tokens for unit in units]),
            kv_tokens=queued + sum(x.kv_tokens + x.host_tokens for x in self.loads) + in_flight,
            is_on_schedule=all(load.is_on_schedule for load in self.loads),
            chunk_tokens=chunk * len(rooms),
            units=units,
            takes_readers=any(
                room.capacity + num_tokens > 0 and room.num_free_blocks + num_blocks > 0
                for room, (num_tokens, num_blocks) in zip(rooms, beside, strict=True)
            ),
        )


def total_tokens(request: Request) -> int:
    """Return the greatest length of the request, in tokens."""
    return len(request.prompt_token_ids) + request.sampling.max_tokens
