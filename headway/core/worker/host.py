"""A DP unit's host memory: KV of preempted requests and of prefixes; copies of the next pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headway.blocks import BlockHash, blocks_for
from headway.core.worker.host_prefixes import HostPrefixes
from headway.core.worker.sequence import Kv
from headway.forward_pass import SAVED, ForwardPass, Swap
from headway.request import StreamKey


class HostMemory:
    """Blocks ``first … first + num_blocks - 1`` of host memory, as large as the device's.

    ``swapped_out`` and ``swapped_in``: for the next pass to carry out. A pass in flight may use
    released blocks, so they become free when none is in flight (``settle``). Cached ``prefixes``
    have what requests leave.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, first: int = 0, most_unsaved: int = 0
    ) -> None:
        """``most_unsaved``: most names of prefixes that may wait to be saved."""
        self._block_size = block_size
        self.num_blocks = num_blocks
        self.prefixes = HostPrefixes(most_unsaved)
        self._num_empty = num_blocks
        self._unused = first  # blocks from here on have never been used
        self._free: list[int] = []
        self._leaving: list[int] = []
        self.swapped_out: list[Swap] = []
        self.swapped_in: list[Swap] = []

    @property
    def num_free(self) -> int:
        """Blocks that may be taken, those of idle prefixes included."""
        return self._num_empty + self.prefixes.num_idle

    def grow(self, table: list[int], num_tokens: int) -> bool:
        """Extend ``table`` to hold ``num_tokens``; False, and no change, without room."""
        missing = blocks_for(num_tokens, self._block_size) - len(table)
        if missing > self.num_free:
            return False
        for _ in range(missing):
            table.append(self._take())
        return True

    def _take(self) -> int:
        if not self._num_empty:
            return self.prefixes.take()
        self._num_empty -= 1
        if self._free:
            return self._free.pop()
        self._unused += 1
        return self._unused - 1

    def release(self, kv: Kv) -> None:
        """Release its blocks."""
        self._leaving += kv.host_blocks
        kv.host_blocks = []

    def settle(self) -> None:
        """Free the released blocks; no pass may be in flight."""
        self._empty(self._leaving)
        self._leaving.clear()

    def _empty(self, blocks: Sequence[int]) -> None:
        self._num_empty += len(blocks)
        self._free += blocks

    @property
    def is_settled(self) -> bool:
        """True if all released blocks are free."""
        return not self._leaving

    @property
    def has_swaps(self) -> bool:
        """True if the next pass has KV of requests to copy."""
        return bool(self.swapped_out or self.swapped_in)

    def swap_out(self, key: StreamKey, kv: Kv) -> bool:
        """Plan a copy of KV to host memory, which frees its blocks; False without room."""
        if not self.grow(kv.host_blocks, kv.num_computed):
            return False
        self.swapped_out.append(self._swap(key, kv))
        return True

    def swap_in(self, key: StreamKey, kv: Kv) -> None:
        """Plan a copy of KV back into the blocks it has been given."""
        self.swapped_in.append(self._swap(key, kv))
        kv.is_returning = True
        self.release(kv)

    # --- prefixes -----------------------------------------------------------------------

    def save(self, names: Sequence[tuple[BlockHash, int]], blocks: Sequence[int]) -> Swap:
        """Plan a copy of the cached ``blocks``; there is room.

        ``names``: theirs, and their numbers in their chains.
        """
        host_blocks = tuple(self._take() for _ in blocks)
        self.prefixes.begin_save(names, host_blocks)
        return Swap(SAVED, tuple(blocks), len(blocks) * self._block_size, host_blocks)

    def read(self, key: StreamKey, blocks: Sequence[int], names: Sequence[BlockHash]) -> None:
        """Plan a copy of these prefixes into the ``blocks`` that a request has been given."""
        host_blocks = self.prefixes.begin_read(key, names)
        num_tokens = len(names) * self._block_size
        self.swapped_in.append(Swap(key, tuple(blocks), num_tokens, host_blocks))

    def end_copies(
        self, forward_pass: ForwardPass, own: Iterable[Swap], failed: Iterable[StreamKey] = ()
    ) -> None:
        """Note that a pass has ended, with its own saves (``own``) and reads of prefixes.

        Reads of the ``failed`` did not work, and with ``SAVED`` among them no save did.
        """
        bad = set(failed)
        for swap in own:
            for block in swap.host_blocks:
                if not self.prefixes.end_save(block, ok=SAVED not in bad):
                    self._empty([block])
        for swap in forward_pass.swapped_in:
            self._empty(self.prefixes.end_read(swap.key, ok=swap.key not in bad))

    def forget(self, names: Iterable[BlockHash]) -> None:
        """Forget prefixes whose KV may be wrong."""
        self._empty(self.prefixes.forget(names))

    def _swap(self, key: StreamKey, kv: Kv) -> Swap:
        blocks = tuple(kv.blocks[: blocks_for(kv.num_computed, self._block_size)])
        return Swap(key, blocks, kv.num_computed, tuple(kv.host_blocks))
