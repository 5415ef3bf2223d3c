"""Headway's passes as vLLM's: who is new there, who continues, who has gone.

vLLM keeps a request's tokens and block table from pass to pass. A request whose next item follows
the one before, over the same blocks, continues. Any other is new there under a new name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.forward_pass import PassItem
from headway.request import StreamKey
from headway_vllm.shim import PlanBuilder

NULL_BLOCKS = 1
"""vLLM's block 0 is nobody's: our block n is its block n + 1."""


@dataclass(slots=True)
class _Known:
    """vLLM's view of a request."""

    name: str
    blocks: list[int] = field(default_factory=list)
    next_start: int = 0
    """The position that its next item must start at."""
    num_prompt: int = 0
    num_given: int = 0
    """The tokens that vLLM was given, its prompt first; those behind them it has drawn."""


class PassTranslator:
    """The memory of what vLLM has been told, from pass to pass.

    It knows at most ``most`` requests at a time, and for each of them what it was told last.
    """

    def __init__(self, *, keeps_requests: bool = False, most: int = sys.maxsize) -> None:
        """``keeps_requests`` and ``most``: see ``Runner``."""
        self._keeps_requests = keeps_requests
        self._most = most
        self._known: dict[StreamKey, _Known] = {}
        self._last: set[str] = set()
        self._gone: set[str] = set()
        self._number = 0

    def forget(self, keys: Iterable[StreamKey]) -> None:
        """Note requests that have ended, or whose KV is elsewhere now."""
        for key in keys:
            known = self._known.pop(key, None)
            if known is not None:
                self._gone.add(known.name)

    def forget_all(self) -> None:
        """Note that vLLM's state is not to be trusted: a pass has failed."""
        self.forget(list(self._known))

    def goes_on(self, item: PassItem) -> bool:
        """Return whether vLLM knows the request up to this item."""
        known = self._known.get(item.key)
        return known is not None and _continues(known, item)

    def translate(self, items: Sequence[PassItem]) -> tuple[Any, Mapping[str, PassItem]]:
        """Return vLLM's plan of a pass, and the items by their names there."""
        plan, by_name = PlanBuilder(), {}
        self._make_room(items)
        for item in items:
            known = self._known.get(item.key)
            if known is not None and not _continues(known, item):
                self.forget([item.key])
                known = None
            if known is None:
                known = self._begin(plan, item)
            else:
                self._go_on(plan, known, item)
            known.blocks = list(item.block_table)
            known.next_start = item.start + len(item.token_ids)
            self._known[item.key] = self._known.pop(item.key)  # the last to be forgotten
            by_name[known.name] = item
        gone, self._gone = self._gone, set()
        self._last = set(by_name)
        return plan.build(gone), by_name

    def _begin(self, plan: PlanBuilder, item: PassItem) -> _Known:
        self._number += 1
        key = item.key
        known = self._known[key] = _Known(f"{key.gateway_id}/{key.stream_id}/{self._number}")
        tokens = [*item.prompt_token_ids, *item.output_token_ids]
        stop = item.start + len(item.token_ids)
        if item.sample:  # its output may have grown since, by a token that is not drawn yet
            del tokens[stop:]
        if len(tokens) < stop:  # the newest token is not in the output yet
            tokens += item.token_ids[len(tokens) - stop :]
        prompt = list(item.prompt_token_ids) if self._keeps_requests else tokens
        known.num_prompt, known.num_given = len(prompt), len(tokens)
        blocks = _their(item.block_table)
        plan.begin(known.name, prompt, tokens, blocks, item.start, len(item.token_ids))
        return known

    def _go_on(self, plan: PlanBuilder, known: _Known, item: PassItem) -> None:
        name, count = known.name, len(item.token_ids)
        num_outputs = max(item.start + count, known.num_given) - known.num_prompt
        if self._keeps_requests or name in self._last:
            new = _their(item.block_table[len(known.blocks) :])
            plan.go_on(name, new, item.start, num_outputs, count)
        else:
            plan.resume(name, _their(item.block_table), item.start, num_outputs, count)

    def _make_room(self, items: Sequence[PassItem]) -> None:
        """Forget those that were in no pass for longest, if vLLM cannot know all of them."""
        if len(self._known) + len(items) <= self._most:
            return
        keys = {item.key for item in items}
        excess = len(keys | self._known.keys()) - self._most
        if excess > 0:
            self.forget([key for key in self._known if key not in keys][:excess])


def _continues(known: _Known, item: PassItem) -> bool:
    return known.next_start == item.start and known.blocks == list(
        item.block_table[: len(known.blocks)]
    )


def _their(blocks: Sequence[int]) -> list[int]:
    return [block + NULL_BLOCKS for block in blocks]
