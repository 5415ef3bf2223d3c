"""Prompts of simulated requests: token ids that are made when somebody asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, takewhile
from typing import overload

from headway.blocks import BlockHash

HASHED_TOKENS = 512
"""Tokens of a block that a trace names by a hash (Mooncake)."""
_MOST_TOKENS = 1 << 32  # of a prompt


def prompt_tokens(number: int, num_tokens: int, hashes: Sequence[int] = ()) -> Sequence[int]:
    """Return the prompt of the ``number``-th request, ``num_tokens`` ids.

    Blocks with equal ``hashes`` hold equal tokens. All others are this request's alone: they are
    negative numbers, and no two requests share one.
    """
    own = -(number + 1) * _MOST_TOKENS
    if not hashes:
        return range(own, own + num_tokens)
    blocks = [range(name * HASHED_TOKENS, (name + 1) * HASHED_TOKENS) for name in hashes]
    blocks.append(range(own, own + num_tokens))
    return PromptTokens(blocks, 0, num_tokens)


def prefix_name(block: int, num_tokens: int) -> BlockHash:
    """Return the name of a beginning that ends ``num_tokens`` into a block of this hash."""
    return block, num_tokens


class PromptTokens(Sequence[int]):
    """Tokens ``start … stop - 1`` of ``blocks``; all but the last of these have 512 tokens."""

    __slots__ = ("_blocks", "_start", "_stop")

    def __init__(self, blocks: Sequence[range], start: int, stop: int) -> None:
        self._blocks = blocks
        self._start = start
        self._stop = max(start, stop)

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[int]: ...
    def __getitem__(self, place: int | slice) -> int | Sequence[int]:
        places = range(self._start, self._stop)[place]
        if isinstance(places, int):
            return next(iter(PromptTokens(self._blocks, places, places + 1)))
        assert places.step == 1, "a prompt is read in order"
        return PromptTokens(self._blocks, places.start, places.stop)

    def prefix_names(self, ends: Iterable[int]) -> list[BlockHash]:
        """Return the names of the beginnings that end there, as far as blocks have hashes."""
        last = len(self._blocks) - 1
        places = ((end, (end - 1) // HASHED_TOKENS) for end in ends)
        return [
            prefix_name(self._blocks[place].start // HASHED_TOKENS, end - place * HASHED_TOKENS)
            for end, place in takewhile(lambda each: each[1] < last, places)
        ]

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._parts())

    def _parts(self) -> Iterator[range]:
        """Yield what it has of each block."""
        at, last = self._start, len(self._blocks) - 1
        while at < self._stop:
            number = min(at // HASHED_TOKENS, last)
            first = number * HASHED_TOKENS
            part = self._blocks[number][at - first : self._stop - first]
            yield part
            at += len(part)
