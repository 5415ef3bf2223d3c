"""Which waiting requests vLLM could admit, with how many blocks, and how far a step has come.

vLLM passes over a request whose grammar is not compiled, or whose adapter (LoRA) finds no place
beside those of the running requests. Nobody makes room for one that would not take it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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


def num_blocks(manager: Any, block_size: int, request: Any) -> int:
    """Return the blocks that a request without any needs at most, of all kinds of KV together."""
    num_tokens = request.num_tokens
    if manager.num_kv_cache_groups == 1:
        return int(-(-num_tokens // block_size))
    needed: int = manager.coordinator.get_num_blocks_to_allocate(
        request_id=request.request_id,
        num_tokens=num_tokens,
        new_computed_blocks=manager.empty_kv_cache_blocks.blocks,
        num_encoder_tokens=0,
        total_computed_tokens=0,
        num_local_computed_tokens=0,
        num_tokens_main_model=num_tokens,
        apply_admission_cap=True,
        prefill_end=num_tokens - 1,
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
    found = dict(counts)
    for out in drawn:
        num_drafts = len(drafts.get(out.request_id, ()))
        if num_drafts and out.new_token_ids:
            found[out.request_id] -= max(0, num_drafts + 1 - len(out.new_token_ids))
    return found
