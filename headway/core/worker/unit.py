"""One DP unit of a worker: its blocks, and the requests that hold or await some."""

from __future__ import annotations

from collections import Counter, abc
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from math import ceil

from headway.blocks import (
    BlockHash,
    BlockPool,
    PrefixNamer,
    block_names,
    num_waypoints,
    waypoint,
)
from headway.cluster import Role, UnitLoad, WorkerInfo
from headway.core.token_counters import CREDIT, OUTPUT_WEIGHT
from headway.core.worker.batch import UnitSums
from headway.core.worker.host import HostMemory
from headway.core.worker.kv_journal import KvJournal
from headway.core.worker.lifecycle import Event, Stage
from headway.core.worker.news import LifeNews
from headway.core.worker.rates import MemoryRates
from headway.core.worker.sequence import Sequence
from headway.core.worker.settings import WorkerSettings
from headway.core.worker.waiting import WaitingRequests
from headway.forward_pass import ForwardPass, Swap
from headway.messages import Admission, CachedPrefixes
from headway.request import Request, StreamKey

HashesOf = Callable[[Request], abc.Sequence[BlockHash]]
"""A function that names the full blocks of a prompt without real tokens (the simulator)."""

_KEPT = 1 / 32
"""Share of a unit's blocks that a flood leaves free on a worker that KV comes to."""
_CANDIDATES = (Stage.RUNNING, Stage.WAITING, Stage.SWAPPING_IN, Stage.SWAPPING_OUT)


@dataclass(slots=True)
class PrefixCounts:
    """Tokens of admitted requests, and how many of them were cached.

    ``num_host_hit_tokens``: those of the hits that came back from host memory.
    """

    num_asked_tokens: int = 0
    num_hit_tokens: int = 0
    num_host_hit_tokens: int = 0


@dataclass(slots=True)
class Unplaced:
    """A request that another worker offered in vain, and the plans for which it is remembered."""

    sequence: Sequence
    num_plans: int = 8


class WorkerUnit:
    """One DP unit: its block pool, its host memory, and its requests by key.

    ``chunk_tokens``: most tokens of one pass. ``changed``: requests that joined, left, or changed
    in a way that the batching policy reads, since the last plan. Tokens computed by a pass are not
    listed. ``waiting``: sums over those that wait for blocks; the others are ``holding``.
    ``batch``: those in a ``ClockedBatch``, None for none; the others of ``holding`` are ``apart``.
    ``released``: requests removed since the last pass. ``admitted``: for the first time, since the
    last report. ``decodes_first``: true on a convertible decoder, where decoding requests have
    their places before prompts, whatever the policy (TokenScale). ``is_unified``: a prompt that is
    sent here takes blocks at once from who yields to it, and decodes here.
    """

    def __init__(
        self,
        unit: int,
        info: WorkerInfo,
        settings: WorkerSettings,
        rates: MemoryRates,
        hashes_of: HashesOf | None = None,
        lives: LifeNews | None = None,
    ) -> None:
        self.unit = unit
        self._settings = settings
        self._lives = lives or LifeNews(is_on=False)
        self._hashes_of = hashes_of
        self.rates = rates
        size = info.block_size
        num_host = settings.host_tokens // size
        self.journal = KvJournal(unit, size) if settings.tells_kv else None
        dropped = None if self.journal is None else self.journal.dropped
        self.pool = BlockPool(info.num_blocks, size, first=unit * info.num_blocks, dropped=dropped)
        self.host = HostMemory(num_host, size, first=unit * num_host, most_unsaved=info.num_blocks)
        self._has_second_tier = settings.host_prefixes and num_host > 0
        self.saving: list[Swap] = []
        """Copies of prefixes to host memory by passes in flight, which hold their blocks."""
        self.prefix_counts = PrefixCounts()
        self.sequences: dict[StreamKey, Sequence] = {}
        self.waiting = WaitingRequests()
        self.take_role(info)
        self.holding: dict[StreamKey, Sequence] = {}
        self.apart: dict[StreamKey, Sequence] = {}
        self.batch: UnitSums | None = None
        self.changed: dict[StreamKey, None] = {}
        self.released: list[StreamKey] = []
        self.admitted: list[Admission] = []
        self.tenants: Counter[str] = Counter()
        """Requests by tenant."""
        self._asked: Counter[str] = Counter()
        """Weighted tokens that they asked for, by tenant, as far as is expected."""
        self._flooding: Counter[str] = Counter()
        """Requests whose tenants have many more in the scheduler, by tenant."""
        self.wanted: dict[StreamKey, Unplaced] = {}
        """Requests of other workers that found no room, and whose tenants may be given some."""
        self.unheld: list[Sequence] = []
        """Requests that held their KV for a handoff, and had to leave their blocks to others."""
        self.has_made_room = False
        """True if blocks were freed for one of ``wanted``; the scheduler is yet to be told."""
        self.num_kept = 0
        """Free blocks that are kept for other tenants than those of ``crowd``."""
        self.crowd: Collection[str] = ()
        self.prompts: dict[StreamKey, Sequence] = {}
        """Requests of ``holding`` that may lack prompt tokens; readers leave out who decodes."""
        self._making: dict[BlockHash, Sequence] = {}
        """Requests by the name of the prompt's block that each computes next."""

    def take_role(self, info: WorkerInfo) -> None:
        """Take the role of its worker, and the chunk of that."""
        role = info.role
        self.chunk_tokens = self.waiting.chunk_tokens = info.pass_tokens
        self.decodes_first = role is Role.CONVERTIBLE
        self.is_unified = role is Role.UNIFIED
        self._takes_kv = role.decodes and not self.is_unified

    def candidate(self, key: StreamKey) -> Sequence | None:
        """Return the request with that key if a forward pass may serve it."""
        sequence = self.sequences.get(key)
        return sequence if sequence is not None and sequence.stage in _CANDIDATES else None

    def add(self, sequence: Sequence) -> None:
        """Add a request."""
        request, kv = sequence.request, sequence.kv
        if self._hashes_of is not None:
            kv.hashes = list(self._hashes_of(request))
        elif self._settings.prefix_caching:
            token_ids = (*request.prompt_token_ids, *request.output_token_ids)
            kv.namer = PrefixNamer(request.cache_salt, request.adapter)
            kv.hashes = block_names(token_ids, self.pool.block_size, kv.namer)
        if sequence.stage is Stage.WAITING and kv.hashes:
            names = self.adoptable(sequence)
            num_blocks = self.pool.count_cached(names)
            num_blocks += len(self._readable(names[num_blocks:]))
            kv.num_hit_tokens = num_blocks * self.pool.block_size
        self.sequences[sequence.key] = sequence
        self.wanted.pop(sequence.key, None)
        self._hold(sequence)
        self.recount(sequence)
        self._count_tenant(request, 1)
        self.changed[sequence.key] = None
        self._lives.came(sequence)

    def move(self, sequence: Sequence, event: Event, cause: str = "", num_lost: int = 0) -> None:
        """Take a request to the stage that follows the event."""
        sequence.advance(event)
        self.changed[sequence.key] = None
        self.recount(sequence)
        self._lives.moved(sequence, event, cause, num_lost)

    def recount(self, sequence: Sequence) -> None:
        """Count a request with those that wait, or with the others, by what it is now."""
        if sequence.stage is Stage.WAITING:
            self._let_go(sequence.key)
            self.waiting.add(sequence)
        elif self.waiting.discard(sequence.key) and sequence.stage is not Stage.GONE:
            self._hold(sequence)

    def _hold(self, sequence: Sequence) -> None:
        for held in (self.holding, self.apart, self.prompts):
            held[sequence.key] = sequence

    def _let_go(self, key: StreamKey) -> None:
        for held in (self.holding, self.apart, self.prompts):
            held.pop(key, None)

    # --- blocks -----------------------------------------------------------------------

    def admit(self, sequence: Sequence) -> None:
        """Give it blocks for all of its tokens; there must be room.

        KV in host memory is copied back. Without any, it starts with cached blocks of its prefix,
        on the device or in host memory, except for the last token, which has to be computed.
        """
        kv = sequence.kv
        was_swapped = kv.num_computed > 0
        names = () if was_swapped else self._adopt(sequence)
        num_adopted = len(kv.blocks)
        granted = self.pool.grow(kv.blocks, sequence.num_tokens)
        assert granted, "room was made for it"
        if was_swapped:
            self.host.swap_in(sequence.key, kv)
        elif names:
            blocks = kv.blocks[num_adopted : num_adopted + len(names)]
            self.host.read(sequence.key, blocks, names)
            kv.is_returning = True
        is_beside = kv.is_returning and self._settings.swaps_beside
        self.move(sequence, Event.SWAPS_IN if is_beside else Event.ADMITTED)
        self._note_making(sequence)

    def adoptable(self, sequence: Sequence) -> abc.Sequence[BlockHash]:
        """Return the hashes of cached blocks that it may start with, without its last token."""
        return sequence.kv.hashes[: (sequence.num_tokens - 1) // self.pool.block_size]

    def _readable(self, names: abc.Sequence[BlockHash]) -> abc.Sequence[BlockHash]:
        """Return the leading names that host memory has, if it has them sooner than computing."""
        if not self._has_second_tier or not self.rates.is_read_sooner:
            return ()
        return names[: self.host.prefixes.count(names)]

    def _adopt(self, sequence: Sequence) -> abc.Sequence[BlockHash]:
        """Let it start with cached blocks; return the names that follow out of host memory."""
        kv = sequence.kv
        if not kv.hashes and not self._settings.prefix_caching:
            return ()
        names = self.adoptable(sequence)
        kv.num_named = self.pool.adopt(kv.blocks, names)
        in_host = self._readable(names[kv.num_named :])
        size = self.pool.block_size
        self._note_hit(sequence, kv.num_named * size, len(in_host) * size)
        return in_host

    def _note_use(self, names: abc.Sequence[BlockHash], first: int = 0) -> None:
        if self._has_second_tier:
            self.host.prefixes.use(names, first)

    def _note_hit(self, sequence: Sequence, num_device_tokens: int, num_host_tokens: int) -> None:
        """Note an admission's cached tokens, by the tier that has them."""
        kv = sequence.kv
        num_hit_tokens = kv.num_computed = num_device_tokens + num_host_tokens
        if num_hit_tokens > sequence.num_cached_tokens and not sequence.attained_tokens:
            sequence.num_cached_tokens = num_hit_tokens
        if not sequence.num_preemptions:
            kv.num_hit_tokens = num_hit_tokens
            self.admitted.append(Admission(sequence.key, num_hit_tokens, num_host_tokens))
            self.prefix_counts.num_asked_tokens += sequence.num_tokens
            self.prefix_counts.num_hit_tokens += num_hit_tokens
            self.prefix_counts.num_host_hit_tokens += num_host_tokens

    def maker(self, sequence: Sequence) -> Sequence | None:
        """Return who computes the block of a waiting prompt that it would compute first, if any.

        A block is in the making until a pass with its last token has ended, or until its request
        has lost its blocks. There are as many makers as prompts with blocks: a handful.
        """
        if not self._making or sequence.kv.num_computed:
            return None
        names = self.adoptable(sequence)
        for name, maker in self._making.items():
            place = maker.kv.num_named
            if place < len(names) and names[place] == name and not self.pool.count_cached([name]):
                return maker
        return None

    def _note_making(self, sequence: Sequence) -> None:
        """Note the block that its prompt computes next, or that there is none."""
        kv = sequence.kv
        if kv.making is not None:
            if self._making.get(kv.making) is sequence:
                del self._making[kv.making]
            kv.making = None
        is_prompt = sequence.num_remaining > (1 if sequence.output else 0)
        num_full = sequence.num_tokens // self.pool.block_size
        if kv.blocks and is_prompt and kv.num_named < min(num_full, len(kv.hashes)):
            kv.making = kv.hashes[kv.num_named]
            self._making.setdefault(kv.making, sequence)

    def cache(self, sequence: Sequence) -> None:
        """Share its full blocks: others may wait for them (``maker``).

        Its last token has no KV yet, so the block that it fills is named one pass later.
        """
        kv, size = sequence.kv, self.pool.block_size
        num_full = kv.num_computed // size
        if num_full <= kv.num_named:
            return
        hashes = kv.hashes
        if kv.namer is not None and len(hashes) < num_full:
            tokens = sequence.tokens(len(hashes) * size, num_full * size)
            hashes += block_names(tokens, size, kv.namer)
        fresh = self.pool.cache(kv.blocks, hashes, kv.num_named, num_full)
        if self.journal is not None and fresh:
            self.journal.cached(sequence, fresh)
        self._note_use(hashes[kv.num_named : num_full], kv.num_named)
        kv.num_named = num_full
        self._note_making(sequence)

    def forget(self, sequence: Sequence) -> None:
        """Withdraw its blocks from the prefix cache: their KV may be wrong."""
        self.pool.forget(sequence.kv.blocks)
        self.host.forget(sequence.kv.hashes[: len(sequence.kv.blocks)])

    # --- copies of prefixes in host memory ----------------------------------------------

    def save(self) -> Iterable[Swap]:
        """Plan copies to host memory of cached blocks that are not there, the oldest first.

        There are as many as a pass has time for; their blocks are held until it has ended.
        """
        most = max(1, self.rates.num_savable_tokens // self.pool.block_size)
        most = min(most, self.host.num_free)
        prefixes, names, blocks = self.host.prefixes, list[tuple[BlockHash, int]](), list[int]()
        while len(names) < most and (unsaved := prefixes.next_unsaved()) is not None:
            block = self.pool.find(unsaved[0])
            if block is not None and unsaved[0] not in prefixes:
                names.append(unsaved)
                blocks.append(block)
        if names:
            self.pool.hold(blocks)
            self.saving.append(self.host.save(names, blocks))
            yield self.saving[-1]

    def end_copies(self, forward_pass: ForwardPass, failed: Collection[StreamKey]) -> None:
        """Note that a pass has ended which may have copied prefixes to or from host memory."""
        own = [swap for swap in self.saving if swap in forward_pass.saved]
        for swap in own:
            self.saving.remove(swap)
            self.pool.release(list(swap.blocks))
        self.host.end_copies(forward_pass, own, failed)

    def lose_read(self, sequence: Sequence) -> None:
        """Let a request compute what its pass should have read from host memory."""
        kv = sequence.kv
        kv.num_computed = kv.num_hit_tokens = kv.num_named * self.pool.block_size
        self.prompts[sequence.key] = sequence
        self.changed[sequence.key] = None

    def preempt(self, sequence: Sequence, *, voluntary: bool = False, cause: str = "") -> None:
        """Take its blocks; copy its KV to host memory if that is faster than computing it again."""
        kv, event = sequence.kv, Event.SWAPS_OUT
        num_lost = kv.num_computed
        if sequence.stage is Stage.PREFILLED:
            self.unheld.append(sequence)
        if not (self._is_swap_sooner(sequence) and self.host.swap_out(sequence.key, kv)):
            kv.num_computed, event = 0, Event.PREEMPTED
        self.pool.release(kv.blocks)
        kv.num_named = 0
        self._note_making(sequence)
        self.move(sequence, event, cause, num_lost)
        sequence.num_preemptions += 1
        sequence.num_voluntary += voluntary
        self.recount(sequence)

    def _is_swap_sooner(self, sequence: Sequence) -> bool:
        kv = sequence.kv
        if not kv.num_computed or not self.host.num_free:
            return False
        num_kept = len(kv.blocks) - self.pool.num_own(kv.blocks)
        return self.rates.swap_is_sooner(kv.num_computed, num_kept * self.pool.block_size)

    def end_swap(self, sequence: Sequence, *, has_failed: bool) -> None:
        """Note the end of a copy to or from host memory; a failed one has lost the KV."""
        if has_failed:
            self.pool.release(sequence.kv.blocks)
            self.host.release(sequence.kv)
            sequence.kv.num_computed = sequence.kv.num_named = 0
            self._note_making(sequence)
        elif sequence.kv.blocks:
            self.cache(sequence)
        self.move(sequence, Event.KV_LOST if has_failed else Event.SWAPPED)

    def remove(self, sequence: Sequence) -> None:
        """Remove a request; free its blocks and its place in host memory."""
        self.host.release(sequence.kv)
        if sequence.departure is not None:
            self.pool.release(sequence.departure.sending)
        self._leave_blocks(sequence)
        self._note_making(sequence)
        del self.sequences[sequence.key]
        if not self.sequences:
            self.wanted.clear()  # there is room, and no plan may come that forgets them
        self._let_go(sequence.key)
        self.released.append(sequence.key)
        self._count_tenant(sequence.request, -1)
        self.move(sequence, Event.RELEASED)

    def _leave_blocks(self, sequence: Sequence) -> None:
        """Release its blocks; what its session alone has used goes first if that is over."""
        kv = sequence.kv
        names = kv.hashes[: kv.num_named]
        if not sequence.request.ends_session:
            self.pool.release(kv.blocks)
            self._note_use(names)
        else:
            num_shared = self.pool.retire(kv.blocks)
            self.host.prefixes.retire(names[num_shared:])

    def want(self, sequence: Sequence) -> None:
        """Note a request that found no room: the next plans take it from who is ahead of it."""
        if not self.tenants.keys() <= {sequence.tenant}:
            self.wanted[sequence.key] = Unplaced(sequence)

    def forget_wanted(self) -> bool:
        """Forget who found no room, if others could run that no pass serves: True if so.

        A leader may wait until those have run, and no pass would end the waiting of either. One
        that copies KV to host memory comes, and the next plan with it.
        """
        could_run = Stage.RUNNING, Stage.WAITING
        if not self.wanted or self.host.has_swaps:
            return False
        if all(each.stage not in could_run for each in self.sequences.values()):
            return False
        self.wanted.clear()
        return True

    def keep(self, crowd: Collection[str]) -> None:
        """Keep some blocks free from tenants that are ahead: others' KV comes between two plans."""
        self.crowd = crowd if self._takes_kv else ()
        self.num_kept = ceil(_KEPT * self.pool.num_blocks) if self.crowd else 0

    def num_free(self, tenant: str) -> int:
        """Return the free blocks that a tenant may take; nothing is kept while nobody has any."""
        return self.pool.num_free - (self._num_kept_now if tenant in self.crowd else 0)

    @property
    def _num_kept_now(self) -> int:
        return self.num_kept if self.pool.num_free < self.pool.num_blocks else 0

    def asks_much(self, tenant: str) -> bool:
        """Return whether a tenant asks for more than a newcomer's credit, here or elsewhere."""
        return self._flooding[tenant] > 0 or self._asked[tenant] > CREDIT * self.chunk_tokens

    def _count_tenant(self, request: Request, sign: int) -> None:
        tenant = request.standing.tenant
        asked = len(request.prompt_token_ids) + OUTPUT_WEIGHT * request.predicted_output_tokens
        self.tenants[tenant] += sign
        self._asked[tenant] += sign * round(asked)
        self._flooding[tenant] += sign * request.standing.floods
        if not self.tenants[tenant]:
            del self.tenants[tenant], self._asked[tenant], self._flooding[tenant]

    # --- cached prefixes --------------------------------------------------------------

    def waypoint_names(self, sequence: Sequence) -> tuple[BlockHash, ...]:
        """Return the names of the waypoints behind its prompt whose KV is cached."""
        kv, size = sequence.kv, self.pool.block_size
        first = num_waypoints(sequence.num_prompt_tokens - 1) + 1
        num_named = min(kv.num_named, len(kv.hashes))
        ends = map(waypoint, range(first, num_waypoints(num_named * size) + 1))
        return tuple([kv.hashes[end // size - 1] for end in ends if not end % size])

    def prefixes(self, most: int) -> abc.Sequence[CachedPrefixes]:
        """Return the beginnings that each tier has cached, the ``most`` most recently used ones."""
        size, prefixes = self.pool.block_size, self.host.prefixes
        if not self._has_second_tier:
            return [self._beginnings(self.pool.cached(), most)]
        in_host = ((name, num_blocks * size) for name, num_blocks in prefixes.cached())
        return [
            self._beginnings(self.pool.cached(), most // 2),
            replace(self._beginnings(in_host, most // 2), in_host=True),
        ]

    def _beginnings(self, cached: Iterable[tuple[BlockHash, int]], most: int) -> CachedPrefixes:
        """Return those that end at waypoints, of names with their ends in tokens."""
        numbered = ((name, num_waypoints(end), end) for name, end in cached)
        named = [(name, number) for name, number, end in numbered if waypoint(number) == end]
        kept = named[max(0, len(named) - most) :]
        return CachedPrefixes(self.unit, tuple(n for n, _ in kept), tuple(n for _, n in kept))

    # --- load -------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        """Requests that hold blocks, those that compute their prompts included."""
        return sum(sequence.running for sequence in list(self.holding.values()))

    def load(self) -> UnitLoad:
        """Return its load now, without phases."""
        waiting = self.waiting
        queued, running = waiting.queued_tokens, waiting.num_decoding
        host_tokens, lost_tokens = waiting.host_tokens, waiting.lost_tokens
        kv_tokens = num_arriving = arriving_tokens = 0
        if self.batch is not None:
            running, kv_tokens = running + self.batch.num_requests, self.batch.kv_tokens
        for sequence in self.apart.values():
            kv, stage = sequence.kv, sequence.stage
            if stage is Stage.ARRIVING:
                num_arriving += 1
                arriving_tokens += sequence.num_tokens if kv.blocks else 0
                continue
            if kv.blocks:
                kv_tokens += kv.num_computed
            else:
                host_tokens += kv.num_computed
            if stage is Stage.PREFILLED or stage is Stage.LEAVING:
                continue
            if sequence.decoding:
                running += 1
            else:
                queued += sequence.num_queued
                lost_tokens += sequence.num_lost
        num_free = max(0, self.pool.num_free - self._num_kept_now)
        return UnitLoad(
            self.unit,
            queued,
            running + num_arriving,
            kv_tokens + arriving_tokens,
            num_free,
            host_tokens,
            lost_tokens=lost_tokens,
            num_arriving=num_arriving,
            arriving_tokens=arriving_tokens,
        )
