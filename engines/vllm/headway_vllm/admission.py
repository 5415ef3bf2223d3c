"""Which waiting requests vLLM could admit, with how many blocks, and how far a step has come.

vLLM passes over a request whose grammar is not compiled, or whose adapter (LoRA) finds no place
beside those of the running requests. Nobody makes room for one that would not take it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from headway_vllm.steady import StepOutput


def adapter_of(request: Any) -> int:
    """Return the number of a request's adapter, 0 if it has none."""
    return int(request.lora_request.lora_int_id) if request.lora_request else 0


class Adapters:
    """The adapters of the requests that run, of which a step may serve ``most``."""

    def __init__(self, running: Iterable[Any], most: int) -> None:
        """``most`` 0: the engine serves none."""
        self._most = most
        self._running = Counter(filter(None, map(adapter_of, running))) if most else Counter[int]()
        self._places = set(self._running)

    def take(self, request: Any) -> bool:
        """Take a waiting request in, if a step may serve it beside the others."""
        adapter = adapter_of(request)
        if adapter and adapter not in self._places:
            if len(self._places) >= self._most:
                return False
            self._places.add(adapter)
        return True

    def leave(self, request: Any) -> bool:
        """Leave a running request out for a step, if others that run keep its adapter's place.

        vLLM would give that place away, and then find more adapters than it can serve.
        """
        adapter = adapter_of(request)
        if self._running[adapter] == 1:
            return False
        self._running[adapter] -= bool(adapter)
        return True


class BlockCost(NamedTuple):
    """A waiting request's blocks, of all kinds of KV together."""

    needed: int
    """Blocks that vLLM wants free before it admits the request."""
    taken: int
    """Blocks that its first chunk takes of them."""
    touched: frozenset[int]
    """Cached blocks among them that nobody holds."""
    filled: frozenset[Any]
    """Hashes of the blocks that its first chunk fills: then they are cached for others."""
    is_coming: bool
    """True if a request before it fills blocks that it shares: in the next step it needs less."""


class FreeBlocks:
    """The blocks that waiting requests may still take in a step, as vLLM counts them.

    A cached block that a running request holds costs nothing. One that nobody holds costs itself,
    once for all who share it. Layers with a window hold the window's blocks alone.
    """

    def __init__(self, scheduler: Any) -> None:
        """``scheduler``: vLLM's, between two steps."""
        self._scheduler = scheduler
        self._manager = scheduler.kv_cache_manager
        self.count: int = self._manager.block_pool.get_num_free_blocks()
        self._touched: set[int] = set()
        self._filled: set[Any] = set()

    def cost(self, request: Any) -> BlockCost:
        """Return what a waiting request costs after those that were taken."""
        scheduler, manager = self._scheduler, self._manager
        cached, start = manager.empty_kv_cache_blocks.blocks, request.num_computed_tokens
        if not start and manager.prefix_cache_lookup_enabled(request):
            cached, start, *_ = manager.coordinator.find_longest_cache_hit(
                request.block_hashes, request.num_tokens - 1
            )
        blocks = (block for group in cached for block in group if not block.is_null)
        touched = frozenset(block.block_id for block in blocks if not block.ref_cnt)
        shared = len(touched & self._touched)
        stop = min(request.num_tokens, start + scheduler.max_num_scheduled_tokens)
        slots = min(stop + scheduler.num_lookahead_tokens, scheduler.max_model_len)
        taken = needed = self._allocated(request, cached, start, slots, stop, is_whole=False)
        if scheduler.scheduler_reserve_full_isl:
            whole = min(request.num_tokens, scheduler.max_model_len)
            whole = self._allocated(request, cached, start, whole, whole, is_whole=True)
            needed = max(taken, whole)
        if scheduler.running:
            needed += manager.watermark_blocks
        size = scheduler.hash_block_size
        filled = frozenset(request.block_hashes[start // size : stop // size])
        is_coming = not self._filled.isdisjoint(filled)
        return BlockCost(needed - shared, taken - shared, touched, filled, is_coming)

    def take(self, cost: BlockCost) -> None:
        """Count the blocks of a request that is to be admitted."""
        self.count -= cost.taken
        self._touched |= cost.touched
        self._filled |= cost.filled

    def _allocated(
        self, request: Any, cached: Any, start: int, slots: int, stop: int, *, is_whole: bool
    ) -> int:
        needed: int = self._manager.coordinator.get_num_blocks_to_allocate(
            request_id=request.request_id,
            num_tokens=slots,
            new_computed_blocks=cached,
            num_encoder_tokens=0,
            total_computed_tokens=start,
            num_local_computed_tokens=start,
            num_tokens_main_model=stop,
            apply_admission_cap=is_whole,
            prefill_end=max(request.num_prompt_tokens, request.num_tokens - 1),
        )
        return needed


def kept(
    counts: Mapping[str, int], drafts: Mapping[str, Sequence[int]], drawn: Sequence[StepOutput]
) -> Mapping[str, int]:
    """Return the tokens of a step whose KV stays: all but those of refused drafts.

    ``counts``: the tokens that the step computed of each request; ``drafts``: the guesses among
    them; ``drawn``: what vLLM tells of those that drew some.
    """
    if not drafts:
        return counts
    num_kept = dict(counts)
    for out in drawn:
        num_drafts = len(drafts.get(out.request_id, ()))
        if num_drafts and out.new_token_ids:
            num_kept[out.request_id] -= max(0, num_drafts + 1 - len(out.new_token_ids))
    return num_kept
