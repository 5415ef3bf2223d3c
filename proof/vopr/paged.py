"""An engine whose next token follows from the whole context, read through its paged KV.

A token's KV is its id. A wrong block table, a block that two requests write, or KV that was lost on
the way changes the context, and with it every later token.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np

from headway.engine import PassFailure
from headway.forward_pass import PENDING, ForwardPass, HiddenStates, PassItem, PassResult, Sampled
from headway.request import StreamKey

END_OF_REASONING = 260
"""The token that ends the shipped model's reasoning."""
_DRAWN_AS_END = 7
_VOCABULARY = 50
_NEVER_WRITTEN = -1
Draw = Callable[[Sequence[int]], int]
"""Draws the next token of a context."""


def next_token(context: Sequence[int]) -> int:
    """Return a token that depends on every token before it; never the end of a sequence (0)."""
    value = 17
    for position, token in enumerate(context):
        value = (value * 31 + token * (position + 7)) % 1_000_003
    token = 1 + value % _VOCABULARY
    return END_OF_REASONING if token == _DRAWN_AS_END else token


def answer_to(prompt: Sequence[int], most: int) -> tuple[int, ...]:
    """Return the undisturbed answer of ``most`` tokens."""
    tokens = list(prompt)
    for _ in range(most):
        tokens.append(next_token(tokens))
    return tuple(tokens[len(prompt) :])


class PagedEngine:
    """The memory of one worker's life: its blocks on the device and in host memory."""

    def __init__(
        self, num_blocks: int, num_host_blocks: int, block_size: int, draw: Draw = next_token
    ) -> None:
        self.block_size = block_size
        self._draw = draw
        self._device = {n: [_NEVER_WRITTEN] * block_size for n in range(num_blocks)}
        self._host = {n: [_NEVER_WRITTEN] * block_size for n in range(num_host_blocks)}
        self._drawn: dict[StreamKey, int] = {}  # by the last pass

    def failed(self) -> None:
        """Note that a pass has failed: it has drawn nothing."""
        self._drawn = {}

    def begin(self, forward_pass: ForwardPass) -> None:
        """Save the KV that leaves its blocks, before anybody else writes into them."""
        for swap in (*forward_pass.swapped_out, *forward_pass.saved):
            for block, host_block in zip(swap.blocks, swap.host_blocks, strict=True):
                self._host[host_block] = list(self._device[block])

    def bring_back(self, forward_pass: ForwardPass) -> None:
        """Copy KV back from host memory: the live engine does so in a pass that fails, too."""
        for swap in forward_pass.swapped_in:
            for block, host_block in zip(swap.blocks, swap.host_blocks, strict=True):
                self._device[block] = list(self._host[host_block])

    def run(self, forward_pass: ForwardPass, seconds: float) -> PassResult:
        """Compute a pass that has begun; PassFailure where the one before it has failed."""
        missing = [
            item.key
            for item in forward_pass.items
            if PENDING in item.token_ids and item.key not in self._drawn
        ]
        if missing:
            raise PassFailure(missing, "the pass before it drew no token")
        sampled = tuple(
            Sampled(item.key, token)
            for item in forward_pass.items
            if (token := self._compute(item)) is not None
        )
        self._drawn = {each.key: each.token_id for each in sampled}
        hidden = self._hidden([forward_pass.items[place] for place in forward_pass.hidden])
        return PassResult(forward_pass.pass_id, seconds, sampled, hidden)

    def _compute(self, item: PassItem) -> int | None:
        size, table = self.block_size, item.block_table
        for position, token in enumerate(item.token_ids, item.start):
            token = self._drawn[item.key] if token == PENDING else token
            self._device[table[position // size]][position % size] = token
        if not item.sample:
            return None
        stop = item.start + len(item.token_ids)
        context: list[int] = []
        for block in table[: -(-stop // size)]:
            context += self._device[block]
        return self._draw(context[:stop])

    @staticmethod
    def _hidden(items: Sequence[PassItem]) -> HiddenStates | None:
        """Return states that say at which position they were computed."""
        if not items:
            return None
        positions = [[item.start + len(item.token_ids) - 1] for item in items]
        return HiddenStates(tuple(item.key for item in items), np.array(positions, np.float16))

    # --- KV on its way ----------------------------------------------------------------

    def read(self, blocks: Sequence[int], *, from_host: bool) -> bytes:
        """Return the KV in these blocks."""
        memory = self._host if from_host else self._device
        tokens = [token for block in blocks for token in memory[block]]
        return struct.pack(f"<{len(tokens)}i", *tokens)

    def write(
        self, blocks: Sequence[int], data: bytes, first: int, stop: int, *, to_host: bool
    ) -> None:
        """Write the KV of tokens ``first … stop - 1``; ``data`` begins with the block of first."""
        memory, size = (self._host if to_host else self._device), self.block_size
        begin = first // size * size
        tokens = struct.unpack(f"<{len(data) // 4}i", data)
        for position in range(first, stop):
            memory[blocks[position // size]][position % size] = tokens[position - begin]
