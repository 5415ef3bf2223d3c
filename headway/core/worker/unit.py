"""One DP unit of a worker: its blocks, and the sequences that hold them or wait for some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.blocks import BlockHash, BlockPool, block_hash
from headway.cluster import UnitLoad
from headway.core.worker.host import HostMemory
from headway.core.worker.rates import MemoryRates
from headway.core.worker.sequence import SequenceState, Stage
from headway.request import StreamKey


@dataclass(slots=True)
class PrefixCounts:
    """Tokens of requests that were admitted, and how many of them the cache had."""

    num_asked_tokens: int = 0
    num_hit_tokens: int = 0


class UnitState:
    """One DP unit: its block pool and its sequences, by key.

    A preempted sequence's KV waits in ``host`` memory while there is room and ``rates`` say that
    this is sooner, and is computed again otherwise.
    ``changed``: who has come, gone, or changed what a batching policy reads, since a pass was
    planned last; tokens computed by that pass need no mention. ``caches_output``: whether
    generated tokens are cached as the prompt's are. ``swaps_beside``: whether KV comes back beside
    a pass, and not before the one that its sequence is in.
    """

    def __init__(
        self,
        unit: int,
        num_blocks: int,
        block_size: int,
        host_tokens: int = 0,
        *,
        caches_output: bool = False,
        swaps_beside: bool = False,
        rates: MemoryRates | None = None,
    ) -> None:
        self.unit = unit
        self.caches_output = caches_output
        self._swaps_beside = swaps_beside
        self.prefix_counts = PrefixCounts()
        self.pool = BlockPool(num_blocks, block_size, first=unit * num_blocks)
        num_host_blocks = host_tokens // block_size
        self.host = HostMemory(num_host_blocks, block_size, first=unit * num_host_blocks)
        self._rates = rates or MemoryRates()
        self.sequences: dict[StreamKey, SequenceState] = {}
        self.changed: dict[StreamKey, None] = {}

    def candidate(self, key: StreamKey) -> SequenceState | None:
        """The sequence of that name, if a forward pass may serve it."""
        sequence = self.sequences.get(key)
        if sequence is None or sequence.is_over:
            return None
        return sequence if sequence.stage in (Stage.WAITING, Stage.RUNNING) else None

    def add(self, sequence: SequenceState) -> None:
        """Take a sequence in."""
        self.sequences[sequence.key] = sequence
        self.changed[sequence.key] = None

    def move(self, sequence: SequenceState, stage: Stage) -> None:
        """Let a sequence be at another stage."""
        sequence.stage = stage
        self.changed[sequence.key] = None

    def admit(self, sequence: SequenceState) -> None:
        """Give it blocks for all of its tokens; there is room.

        KV in host memory comes back. Without any it begins with the blocks of its prefix that are
        cached here, but for the last token, which has to be computed.
        """
        was_swapped = sequence.num_computed > 0
        if not was_swapped:
            self._adopt(sequence)
        granted = self.pool.grow(sequence.blocks, sequence.num_tokens)
        assert granted, "room was made for it"
        if was_swapped:
            self.host.swap_in(sequence)
            if self._swaps_beside:
                sequence.returning = True
                sequence.num_passes += 1
        self.move(sequence, Stage.RUNNING)

    def adoptable(self, sequence: SequenceState) -> Sequence[BlockHash]:
        """Hashes of the blocks that it may begin with: its last token has to be computed."""
        return sequence.hashes[: (sequence.num_tokens - 1) // self.pool.block_size]

    def look_up(self, sequence: SequenceState) -> None:
        """What it would begin with now: not to be told of as work."""
        num_blocks = self.pool.count_cached(self.adoptable(sequence)) if sequence.hashes else 0
        sequence.num_hit_tokens = num_blocks * self.pool.block_size

    def _adopt(self, sequence: SequenceState) -> None:
        if not sequence.hashes and not self.caches_output:
            return
        sequence.num_named = self.pool.adopt(sequence.blocks, self.adoptable(sequence))
        num_hit_tokens = sequence.num_named * self.pool.block_size
        sequence.begin_at(num_hit_tokens)
        if not sequence.num_preemptions:
            sequence.num_hit_tokens = num_hit_tokens
            self.prefix_counts.num_asked_tokens += sequence.num_tokens
            self.prefix_counts.num_hit_tokens += num_hit_tokens

    def cache(self, sequence: SequenceState) -> None:
        """A token was drawn behind its full blocks, which vouches for them: others may use them.

        Its last token has no KV yet, so the block that it fills is named one pass later.
        """
        size = self.pool.block_size
        num_full = sequence.num_computed // size
        if num_full <= sequence.num_named:
            return
        hashes = sequence.hashes
        if self.caches_output:
            for n in range(len(hashes), num_full):
                tokens = sequence.tokens(n * size, (n + 1) * size)
                hashes.append(block_hash(hashes[-1] if hashes else None, tokens))
        self.pool.cache(sequence.blocks, hashes, sequence.num_named, num_full)
        sequence.num_named = num_full

    def preempt(self, sequence: SequenceState, *, voluntary: bool = False) -> None:
        """Take its blocks back; its KV waits in host memory, or is computed again."""
        if not (self._is_swap_sooner(sequence) and self.host.swap_out(sequence)):
            sequence.num_computed = 0
        self.pool.release(sequence.blocks)
        sequence.num_named = 0
        self.move(sequence, Stage.WAITING)
        sequence.num_preemptions += 1
        sequence.num_voluntary += voluntary

    def _is_swap_sooner(self, sequence: SequenceState) -> bool:
        if not sequence.num_computed or not self.host.num_free:
            return False
        num_kept = len(sequence.blocks) - self.pool.num_own(sequence.blocks)
        return self._rates.swap_is_sooner(sequence.num_computed, num_kept * self.pool.block_size)

    def miss(self, sequence: SequenceState) -> None:
        """Its KV did not come back from host memory: it is computed again."""
        self.pool.release(sequence.blocks)
        sequence.num_computed = 0
        self.move(sequence, Stage.WAITING)

    def lose(self, sequence: SequenceState) -> None:
        """Its KV did not get to host memory: it is computed again."""
        self.host.release(sequence)
        sequence.num_computed = 0
        self.changed[sequence.key] = None

    def remove(self, sequence: SequenceState) -> None:
        """Forget a sequence and free its blocks, and its place in host memory."""
        self.host.release(sequence)
        self.pool.release(sequence.sending)
        self.pool.release(sequence.blocks)
        del self.sequences[sequence.key]
        self.changed[sequence.key] = None

    def load(self) -> UnitLoad:
        """Its load now, without phases."""
        queued = running = kv_tokens = host_tokens = 0
        for sequence in self.sequences.values():
            is_arriving = sequence.stage is Stage.ARRIVING
            if sequence.blocks:
                kv_tokens += sequence.num_tokens if is_arriving else sequence.num_computed
            else:
                host_tokens += sequence.num_computed
            if is_arriving:
                running += 1
                continue
            if sequence.stage is Stage.HANDOFF:
                continue
            if sequence.decoding:
                running += 1
            else:
                queued += sequence.num_queued
        num_free = self.pool.num_free
        return UnitLoad(self.unit, queued, running, kv_tokens, num_free, host_tokens)
