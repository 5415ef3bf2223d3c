"""Texts of so many tokens: blocks with the same id have the same text, others share none."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_WORDS = tuple(
    "water stone river light paper house green apple table north south music story clock bread "  # noqa: SIM905
    "field horse train cloud glass garden window silver summer winter letter number market "
    "bridge forest island valley mirror candle engine ladder basket button copper planet".split()
)


@dataclass(frozen=True, slots=True)
class Measure:
    """The endpoint's own counts: characters of a token, tokens around one and around two messages.

    ``first``: tokens of a prompt with one message beside its text. ``pair``: of two more messages.
    """

    chars_per_token: float
    first: int
    pair: int

    @classmethod
    def of(cls, chars: tuple[int, int], short: int, long: int, three: int) -> Measure:
        """Solve for them by three prompts.

        ``short`` and ``long``: the tokens of prompts of one message, with so many ``chars``.
        ``three``: of a prompt of three messages, each with the text of the short one.
        """
        per_token = (chars[1] - chars[0]) / max(1, long - short)
        text = round(chars[0] / per_token)
        return cls(per_token, max(0, short - text), max(0, three - short - 2 * text))


class Texts:
    """Prompts' texts, by the ids of their blocks of ``block`` tokens.

    ``salt`` tells runs apart: an endpoint that keeps the KV of an earlier run has none of this one.
    """

    def __init__(self, salt: str, chars_per_token: float, block: int) -> None:
        self._salt = salt
        self._chars_per_token = chars_per_token
        self._block = block

    def between(self, ids: Sequence[int], start: int, end: int, own: str) -> str:
        """Return the text of the prompt's tokens ``start`` to ``end``.

        Blocks behind the last id are nobody else's: ``own`` tells whose they are.
        """
        parts = []
        for place in range(start // self._block, -(-end // self._block)):
            name = str(ids[place]) if place < len(ids) else f"{own}/{place}"
            begin = place * self._block
            first, last = max(start, begin) - begin, min(end, begin + self._block) - begin
            parts.append(self._text(name)[self._char(first) : self._char(last)])
        return "".join(parts)

    def _char(self, token: int) -> int:
        return round(token * self._chars_per_token)

    def _text(self, name: str) -> str:
        """Return the whole text of a block; it begins with words that are its own."""
        rng = random.Random(f"{self._salt} {name}")
        length = self._char(self._block)
        words: list[str] = []
        num_chars = 0
        while num_chars < length:
            words.append(rng.choice(_WORDS))
            num_chars += len(words[-1]) + 1
        return (" ".join(words) + " ")[:length]


def num_shared(ids: Sequence[int], other: Sequence[int]) -> int:
    """Return how many ids both begin with."""
    num = 0
    while num < min(len(ids), len(other)) and ids[num] == other[num]:
        num += 1
    return num


def shared_starts(prompts: Sequence[Sequence[int]]) -> list[int]:
    """Return, for each prompt, how many of its first ids another one begins with as well."""
    order = sorted(range(len(prompts)), key=lambda place: (tuple(prompts[place]), place))
    shared = [0] * len(prompts)
    for one, other in pairwise(order):
        both = num_shared(prompts[one], prompts[other])
        shared[one] = max(shared[one], both)
        shared[other] = max(shared[other], both)
    return shared
