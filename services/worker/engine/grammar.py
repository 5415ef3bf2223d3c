"""Masks of the tokens that a request's grammar admits next, computed beside the forward pass.

A state is a function of the request's tokens alone: what is not kept is computed again from them.
A request that was preempted, moved or resumed therefore continues as it would have without.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from headway.forward_pass import PassItem
from headway.request import Constraints, StreamKey
from services.runtime.grammars import (
    Bits,
    admitted,
    compile_grammar,
    first_line,
    load_tokenizer,
)

MAX_STATES = 512
"""States kept, but for those of the last pass; others are computed again from their tokens."""


class Mask(NamedTuple):
    """The tokens that may be drawn: 1 for each that may, (vocabulary,)."""

    admitted: Bits
    is_over: bool
    """True if the answer is complete: nothing but an end may follow."""
    instead: int | None = None
    """The token that is drawn where the model would draw one that may not be; None: the next best.
    An end inside the reasoning is the reasoning's: the answer has yet to take its form."""
    problem: str = ""
    """Why its grammar admits nothing: it has failed."""


Masks = Mapping[StreamKey, Mask]
NO_MASKS: Masks = {}


class GrammarState:
    """One request's way through its grammar, after the tokens that it has read."""

    def __init__(self, constraints: Constraints, tokenizer: LLTokenizer) -> None:
        self.constraints = constraints
        self._matcher: LLMatcher = compile_grammar(tokenizer, constraints.grammar)
        self._reasons = bool(constraints.reasoning_end) and not constraints.reasoning_start
        self._tail: list[int] = []  # the last tokens of the reasoning, as many as its end has
        self.num_read = 0
        self.last = -1

    def read(self, tokens: Sequence[int]) -> None:
        """Take further output tokens."""
        for token in tokens:
            if self._reasons:
                self._reason(token)
            elif self._may_begin() and token == self.constraints.reasoning_start[0]:
                self._reasons = True
                self._tail = [token]
            else:
                self._matcher.consume_token(token)
            self.num_read += 1
            self.last = token

    def _may_begin(self) -> bool:
        return self.num_read == 0 and bool(self.constraints.reasoning_start)

    def _reason(self, token: int) -> None:
        end = self.constraints.reasoning_end
        self._tail = [*self._tail, token][-len(end) :]
        self._reasons = tuple(self._tail) != end

    def mask(self, vocab_size: int, stops: Sequence[int], ends: Sequence[int]) -> Mask:
        """Return what may follow; ValueError where the grammar fails.

        Tokens of ``stops`` may end a complete answer, too. Neither they nor ``ends`` may end the
        reasoning.
        """
        if self._reasons:
            anything = np.ones(vocab_size, np.uint8)
            anything[[token for token in (*stops, *ends) if token < vocab_size]] = 0
            return Mask(anything, False, self.constraints.reasoning_end[0])
        matcher = self._matcher
        found = admitted(matcher, vocab_size)
        if matcher.is_error():
            raise ValueError(first_line(matcher.get_error()))
        if matcher.is_accepting():
            found[[token for token in stops if token < vocab_size]] = 1
        if self._may_begin():
            found[self.constraints.reasoning_start[0]] = 1
        return Mask(found[:vocab_size], matcher.is_stopped())


class Grammars:
    """The grammars of an engine's requests, followed in a thread of their own."""

    def __init__(self, file: Path | None, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """Prepare; ``file`` is the model's ``tokenizer.json``, read when a grammar first comes."""
        self._file = file
        self._vocab_size = vocab_size
        self._eos = tuple(eos_token_ids)
        self._tokenizer: LLTokenizer | None = None
        self._states: OrderedDict[StreamKey, GrammarState] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, "grammars")

    def begin(self, items: Sequence[PassItem]) -> Future[Masks] | None:
        """Begin to compute the masks of a pass; None if no item has a grammar."""
        bound = [item for item in items if item.sample and _grammar(item)]
        return self._thread.submit(self._masks, bound) if bound else None

    def _masks(self, items: Sequence[PassItem]) -> Masks:
        masks: dict[StreamKey, Mask] = {}
        for item in items:
            try:
                masks[item.key] = self._mask(item)
            except ValueError as error:
                nothing = np.zeros(self._vocab_size, np.uint8)
                masks[item.key] = Mask(nothing, False, problem=f"a grammar fails: {error}")
        # Passes ask in one order: with a state less than requests, each would be evicted in turn.
        while len(self._states) > max(MAX_STATES, len(items)):
            self._states.popitem(last=False)
        return masks

    def _mask(self, item: PassItem) -> Mask:
        state = self._state(item)
        state.read(item.output_token_ids[state.num_read : item.num_output_tokens])
        return state.mask(self._vocab_size, item.sampling.stop_token_ids, self._eos)

    def _state(self, item: PassItem) -> GrammarState:
        """Return the request's state, a new one where the tokens that it has read are others."""
        state = self._states.pop(item.key, None)
        if state is None or not _continues(item, state):
            assert item.sampling.constraints is not None, "the item has a grammar"
            state = GrammarState(item.sampling.constraints, self._load())
        self._states[item.key] = state
        return state

    def _load(self) -> LLTokenizer:
        if self._tokenizer is None:
            if self._file is None:
                raise ValueError("the model has no tokenizer.json")
            self._tokenizer = load_tokenizer(self._file, self._vocab_size, self._eos)
        return self._tokenizer

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False)


def _grammar(item: PassItem) -> str:
    constraints = item.sampling.constraints
    return constraints.grammar if constraints is not None else ""


def _continues(item: PassItem, state: GrammarState) -> bool:
    num_read = state.num_read
    if item.sampling.constraints != state.constraints:
        return False
    if num_read == 0:
        return True
    return num_read <= item.num_output_tokens and item.output_token_ids[num_read - 1] == state.last
