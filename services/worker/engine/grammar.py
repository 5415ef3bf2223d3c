"""Masks of the tokens that requests' grammars admit next, computed beside the forward passes.

A process of its own computes them (``masks``). A state is a function of the request's tokens alone:
what is not kept is computed again from them. A request that was preempted, moved or resumed
therefore continues as it would have without.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Condition, Thread

import numpy as np

from headway.forward_pass import PassItem
from headway.request import Constraints, StreamKey
from services.worker.engine.masks import Made, Mask, Order, Setup, Wanted

MAX_STATES = 512
"""States kept, but for those of the last pass; others are computed again from their tokens."""

_MAIN = "from services.worker.engine.masks import main; main()"
"""Not ``-m``: what it sends would be of a module that is called ``__main__``."""

Masks = Mapping[StreamKey, Mask]
NO_MASKS: Masks = {}


@dataclass(slots=True)
class _Sent:
    """A request as the process of masks knows it, with its newest order."""

    constraints: Constraints
    num_read: int
    last: int
    """The last token that it has read, -1 for none."""
    number: int
    mask: Mask | None = None
    """The mask after them; None while it is computed."""


class PassMasks:
    """The masks of one pass."""

    def __init__(self, grammars: Grammars, keys: Sequence[StreamKey]) -> None:
        self._grammars = grammars
        self._keys = keys

    def result(self, timeout: float | None = None) -> Masks:
        """Wait for them for so many seconds, None for ever; return those that are ready."""
        return self._grammars.wait(self._keys, timeout)

    def late(self, masks: Masks) -> frozenset[StreamKey]:
        """Return the requests that have a grammar and no mask."""
        return frozenset(key for key in self._keys if key not in masks)


class Grammars:
    """The grammars of an engine's requests, followed by a process of their own."""

    def __init__(self, file: Path | None, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """Prepare; ``file`` is the model's ``tokenizer.json``, read when a grammar first comes."""
        self._setup = Setup(file, vocab_size, tuple(eos_token_ids))
        self._sent: OrderedDict[StreamKey, _Sent] = OrderedDict()
        self._changed = Condition()
        self._process: _MaskProcess | None = None
        self._number = 0

    def begin(self, items: Sequence[PassItem]) -> PassMasks | None:
        """Begin to compute the masks of a pass; None if no item has a grammar."""
        bound = [item for item in items if item.sample and _grammar(item)]
        if not bound:
            return None
        with self._changed:
            orders = [order for item in bound if (order := self._order(item)) is not None]
            # Passes ask in one order: with a state less than requests, each would be evicted.
            excess = max(0, len(self._sent) - max(MAX_STATES, len(bound)))
            gone = [self._sent.popitem(last=False)[0] for _ in range(excess)]
            self._send([*gone, *orders])
        return PassMasks(self, [item.key for item in bound])

    def _order(self, item: PassItem) -> Order | None:
        """Return the order for a request's mask; None if it is there, or under way."""
        constraints, num_output = item.sampling.constraints, item.num_output_tokens
        assert constraints is not None, "the item has a grammar"
        sent = self._sent.get(item.key)
        if sent is not None and not _continues(item, sent):
            sent = None
        if sent is not None:
            self._sent.move_to_end(item.key)
            if sent.num_read == num_output:
                return None
        tokens = tuple(item.output_token_ids[sent.num_read if sent else 0 : num_output])
        self._number += 1
        last = tokens[-1] if tokens else -1
        self._sent.pop(item.key, None)
        self._sent[item.key] = _Sent(constraints, num_output, last, self._number)
        anew = constraints if sent is None else None
        stops = item.sampling.stop_token_ids
        return Wanted(item.key, self._number, item.tenant, anew, tokens, stops)

    def forget(self, keys: Sequence[StreamKey]) -> None:
        """Forget requests that have ended, and what is under way for them."""
        if not self._sent:
            return
        with self._changed:
            self._send([key for key in keys if self._sent.pop(key, None) is not None])

    def wait(self, keys: Sequence[StreamKey], timeout: float | None) -> Masks:
        """Return the masks of these requests that are ready after so many seconds."""

        def ready() -> bool:
            return all(key not in self._sent or self._sent[key].mask is not None for key in keys)

        with self._changed:
            self._changed.wait_for(ready, timeout)
            masks = ((key, self._sent[key].mask) for key in keys if key in self._sent)
            return {key: mask for key, mask in masks if mask is not None}

    # --- the process ------------------------------------------------------------------

    def _send(self, orders: Sequence[Order]) -> None:
        if not orders:
            return
        if self._process is None:
            self._process = _MaskProcess(self._setup, self._take, self._died)
        self._process.send(orders)

    def _take(self, made: Made) -> None:
        bits = np.unpackbits(np.frombuffer(made.bits, np.uint8), count=self._setup.vocab_size)
        with self._changed:
            sent = self._sent.get(made.key)
            if sent is not None and sent.number == made.number:
                sent.mask = Mask(bits, *made.rest)
                self._changed.notify_all()

    def _died(self) -> None:
        """Fail the requests whose masks it has not computed; the next order starts another."""
        with self._changed:
            self._process = None
            nothing = np.zeros(self._setup.vocab_size, np.uint8)
            problem = "its grammar fails: the process that follows grammars has ended"
            for key, sent in list(self._sent.items()):
                if sent.mask is None:
                    sent.mask = Mask(nothing, False, problem=problem)
                else:
                    del self._sent[key]
            self._changed.notify_all()

    def close(self) -> None:
        """End the process."""
        with self._changed:
            if self._process is not None:
                self._process.kill()


class _MaskProcess:
    """The process of ``masks``, with a thread for each direction: nobody waits to send."""

    def __init__(
        self, setup: Setup, take: Callable[[Made], None], died: Callable[[], None]
    ) -> None:
        own, its = socket.socketpair()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, str(its.fileno())],
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._connection = Connection(own.detach())
        self._take, self._died = take, died
        self._orders: SimpleQueue[Setup | Sequence[Order] | None] = SimpleQueue()
        self._orders.put(setup)
        self._sender = Thread(target=self._send_all, name="mask orders", daemon=True)
        self._sender.start()
        Thread(target=self._receive, name="masks", daemon=True).start()

    def send(self, orders: Sequence[Order]) -> None:
        """Send orders after those before."""
        self._orders.put(orders)

    def kill(self) -> None:
        """End it; what waits for a mask is told that it has died."""
        self._process.kill()

    def _send_all(self) -> None:
        with suppress(OSError):  # it has died; the other thread notices, too
            while (orders := self._orders.get()) is not None:
                self._connection.send(orders)

    def _receive(self) -> None:
        try:
            with suppress(EOFError, OSError):
                while True:
                    self._take(self._connection.recv())
        finally:
            self._process.kill()
            self._process.wait()
            self._orders.put(None)
            self._sender.join()
            self._connection.close()
            self._died()


def _grammar(item: PassItem) -> str:
    constraints = item.sampling.constraints
    return constraints.grammar if constraints is not None else ""


def _continues(item: PassItem, sent: _Sent) -> bool:
    num_read = sent.num_read
    if item.sampling.constraints != sent.constraints:
        return False
    if num_read == 0:
        return True
    return num_read <= item.num_output_tokens and item.output_token_ids[num_read - 1] == sent.last
