"""The process that follows grammars: what each request's admits next, and whose turn it is.

A mask may take long, and its library holds the interpreter's lock meanwhile. In a process of its
own it holds up neither a pass nor an event loop. Tenants have equal shares of its time.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from headway.core.token_counters import TokenCounters
from headway.request import Constraints, StreamKey
from services.runtime.grammars import (
    Bits,
    admitted,
    compile_grammar,
    first_line,
    load_tokenizer,
)

_NICER = 5
"""Steps of priority below the process that computes passes."""


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


class Wanted(NamedTuple):
    """An order for a request's next mask, after ``token_ids`` that its state has not read."""

    key: StreamKey
    number: int
    """The order's own: an answer to an older one is nobody's."""
    tenant: str
    constraints: Constraints | None
    """None if the state is known, else it begins anew."""
    token_ids: tuple[int, ...]
    stops: tuple[int, ...]


class Made(NamedTuple):
    """A mask, with the number of its order; ``bits``: ``Mask.admitted`` in bits, 8 a byte."""

    key: StreamKey
    number: int
    bits: bytes
    rest: tuple[bool, int | None, str]
    """The mask's other fields."""


class Setup(NamedTuple):
    """The tokenizer's file, None if the model has none, and the vocabulary."""

    file: Path | None
    vocab_size: int
    eos_token_ids: tuple[int, ...]


Order = Wanted | StreamKey
"""A mask to compute, or a request to forget."""


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
        admissible = admitted(matcher, vocab_size)
        if matcher.is_error():
            raise ValueError(first_line(matcher.get_error()))
        if matcher.is_accepting():
            admissible[[token for token in stops if token < vocab_size]] = 1
        if self._may_begin():
            admissible[self.constraints.reasoning_start[0]] = 1
        return Mask(admissible[:vocab_size], matcher.is_stopped())


class MaskMaker:
    """The states of all requests, and the orders that wait, by tenant."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._tokenizer: LLTokenizer | None = None
        self.states: dict[StreamKey, GrammarState] = {}
        self._waiting: dict[str, deque[Wanted]] = {}
        self._seconds = TokenCounters()

    @property
    def is_idle(self) -> bool:
        """True if no order waits."""
        return not self._waiting

    def take(self, orders: Sequence[Order]) -> None:
        """Take orders; those of a request that is forgotten are dropped with it."""
        for order in orders:
            if isinstance(order, StreamKey):
                self.states.pop(order, None)
                self._drop(order)
                continue
            if order.tenant not in self._waiting:
                self._seconds.join(order.tenant, map(self._seconds.of, self._waiting))
                self._waiting[order.tenant] = deque()
            self._waiting[order.tenant].append(order)

    def _drop(self, key: StreamKey) -> None:
        for tenant, orders in list(self._waiting.items()):
            kept = deque(order for order in orders if order.key != key)
            self._waiting[tenant] = kept
            if not kept:
                self._leave(tenant)

    def _leave(self, tenant: str) -> None:
        del self._waiting[tenant]
        self._seconds.leave(tenant, self._waiting)

    def make(self) -> Made:
        """Compute the next mask of the tenant that has had the fewest seconds."""
        tenant = min(self._waiting, key=lambda name: (self._seconds.of(name), name))
        order = self._waiting[tenant].popleft()
        began_at = time.thread_time()
        mask = self._mask(order)
        self._seconds.charge(tenant, time.thread_time() - began_at)
        if not self._waiting[tenant]:
            self._leave(tenant)
        return Made(order.key, order.number, np.packbits(mask.admitted).tobytes(), mask[1:])

    def _mask(self, order: Wanted) -> Mask:
        size = self._setup.vocab_size
        try:
            if order.constraints is not None:
                self.states[order.key] = GrammarState(order.constraints, self._load())
            state = self.states[order.key]
            state.read(order.token_ids)
            return state.mask(size, order.stops, self._setup.eos_token_ids)
        except (ValueError, KeyError) as error:
            return Mask(np.zeros(size, np.uint8), False, problem=f"its grammar fails: {error}")

    def _load(self) -> LLTokenizer:
        if self._tokenizer is None:
            file, size, ends = self._setup
            if file is None:
                raise ValueError("the model has no tokenizer.json")
            self._tokenizer = load_tokenizer(file, size, ends)
        return self._tokenizer


def serve(connection: Connection) -> None:
    """Compute masks for the process at the other end, until it closes the connection."""
    maker = MaskMaker(connection.recv())
    while True:
        while maker.is_idle or connection.poll():
            maker.take(connection.recv())
        connection.send(maker.make())


def main() -> None:
    """Serve over the socket whose descriptor is the only argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the worker
    os.nice(_NICER)
    with suppress(EOFError, OSError):
        serve(Connection(int(sys.argv[1])))
