"""The tokens that a simulated model draws: only their number and their ends are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headway.forward_pass import PLAIN

REASONING_END, EOS = 1, 2
"""The two token ids that a simulated model knows beside ``PLAIN``."""


class TrueLengths(Protocol):
    """The lengths that a request will have: known to the simulated model alone."""

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens up to and with the end of reasoning; 0 without reasoning."""

    @property
    def num_output_tokens(self) -> int:
        """All tokens of the output, the last included."""

    @property
    def prefix_hashes(self) -> Sequence[int]:
        """Hashes of the prompt's blocks, from its beginning."""


def steps_to_event(lengths: TrueLengths, num_drawn: int) -> int:
    """Return the steps until a request with so many tokens ends its reasoning or its output."""
    if num_drawn < lengths.num_reasoning_tokens:
        return lengths.num_reasoning_tokens - num_drawn
    return max(1, lengths.num_output_tokens - num_drawn)


def token_at(lengths: TrueLengths, num_drawn: int) -> int:
    """Return the newest of so many drawn tokens."""
    if num_drawn >= lengths.num_output_tokens:
        return EOS
    return REASONING_END if num_drawn == lengths.num_reasoning_tokens else PLAIN
