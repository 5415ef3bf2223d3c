"""Grammars of answers by llguidance: the gateway checks them, the worker's sampler follows them.

A grammar is llguidance's own text: a JSON object with a schema, or Lark. Both services compile it
under the same limits, so that what the gateway accepts the worker can follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from numpy.typing import NDArray

Bits = NDArray[np.uint8]


def load_tokenizer(file: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> LLTokenizer:
    """Read a ``tokenizer.json`` as llguidance needs it; up to a second for a large vocabulary."""
    tokenizer = LLTokenizer(str(file), eos_token=list(eos_token_ids) or None)
    if tokenizer.vocab_size >= vocab_size:
        return tokenizer
    return LLTokenizer(str(file), n_vocab=vocab_size, eos_token=list(eos_token_ids) or None)


def compile_grammar(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """Return a matcher at the start of the grammar; ``get_error`` says what is wrong with it."""
    return LLMatcher(tokenizer, grammar, log_level=0, limits=_limits())


def admitted(matcher: LLMatcher, vocab_size: int) -> Bits:
    """Return one 0 or 1 for each token: whether the grammar admits it next."""
    mask = allocate_token_bitmask(1, vocab_size)
    fill_next_token_bitmask(matcher, mask, 0)
    return np.unpackbits(mask[0].view(np.uint8), bitorder="little")


def first_line(error: str) -> str:
    """Return what went wrong without llguidance's account of its state."""
    lines = [line.strip() for line in error.split("\n<state>")[0].splitlines()]
    return " ".join(line for line in lines if line)[:400]


def _limits() -> LLParserLimits:
    """Return the most that a grammar may cost: no pass waits for a hostile one."""
    return LLParserLimits(
        max_items_in_row=2_000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=100_000,
        precompute_large_lexemes=False,
        verbose_errors=False,
    )
