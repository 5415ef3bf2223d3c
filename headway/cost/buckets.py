"""Nine kinds of request: short, medium or long, going in and coming out (TokenScale, Table II)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isqrt

from headway.errors import invalid

SIZES = ("S", "M", "L")
NUM_BUCKETS = len(SIZES) ** 2


@dataclass(frozen=True, slots=True)
class Buckets:
    """The sizes, in tokens, that stand for short, medium and long; ascending, at least 1.

    A length belongs to the nearest of them on a logarithmic scale, to the shorter one halfway.
    """

    input_tokens: Sequence[int] = (256, 1024, 8192)
    output_tokens: Sequence[int] = (100, 350, 610)
    _input_bounds: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _output_bounds: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("input_tokens", "output_tokens"):
            edges = tuple(getattr(self, name))
            ascending = all(type(e) is int and e >= 1 for e in edges) and list(edges) == sorted(
                set(edges)
            )
            if len(edges) != len(SIZES) or not ascending:
                raise invalid(name, edges, "3 ascending whole numbers of tokens, at least 1")
            object.__setattr__(self, name, edges)
        object.__setattr__(self, "_input_bounds", _bounds(self.input_tokens))
        object.__setattr__(self, "_output_bounds", _bounds(self.output_tokens))

    def of(self, num_input_tokens: float, num_output_tokens: float) -> int:
        """The bucket's index, 0 to 8, outputs fastest: S-S, S-M, S-L, M-S …

        An output of 0 tokens is one of which nothing is known: it counts as medium.
        """
        row = bisect_left(self._input_bounds, num_input_tokens * num_input_tokens)
        if num_output_tokens <= 0:
            return row * len(SIZES) + 1
        column = bisect_left(self._output_bounds, num_output_tokens * num_output_tokens)
        return row * len(SIZES) + column

    def within(self, max_model_len: int) -> Buckets:
        """Return sizes that fit a model: a long input is cut to leave room for a long output.

        A medium one that is then not shorter lies halfway on the logarithmic scale. A model that
        takes none of them leaves them as they are.
        """
        short, medium, long = self.input_tokens
        long = min(long, max_model_len - self.output_tokens[-1])
        if medium >= long:
            medium = isqrt(short * max(long, 0))
        return Buckets((short, medium, long), self.output_tokens) if short < medium < long else self

    def lengths(self, index: int) -> tuple[int, int]:
        """Input and output tokens that stand for a bucket."""
        row, column = divmod(index, len(SIZES))
        return self.input_tokens[row], self.output_tokens[column]


def bucket_name(index: int) -> str:
    """``S-S`` to ``L-L``: input, then output."""
    row, column = divmod(index, len(SIZES))
    return f"{SIZES[row]}-{SIZES[column]}"


BUCKET_NAMES = tuple(bucket_name(index) for index in range(NUM_BUCKETS))


def _bounds(edges: Sequence[int]) -> tuple[int, ...]:
    """Squares of the lengths halfway between neighbours, which are their geometric means."""
    return tuple(low * high for low, high in pairwise(edges))
