"""The torch backend on a device that takes a pass while it still computes the one before.

A pass is laid out and launched with tokens that the pass before has drawn and nobody has read: the
device copies them into their rows. Results come home beside the passes after them. So the
processor's work between two passes is hidden behind the device's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from headway.forward_pass import PENDING, ForwardPass, PassItem, PassResult
from headway.request import StreamKey
from services.worker.engine.backend import TorchBackend, hidden_rows, of_hidden, with_drawn
from services.worker.engine.grammar import NO_MASKS
from services.worker.engine.layout import PassLayout
from services.worker.engine.sampler import Drawing, begin_draw
from services.worker.engine.transfer import fetched, sent


class QueueingTorchBackend(TorchBackend):
    """A ``headway.engine.QueueingBackend``. On a CPU, a launch computes the pass."""

    _last: LaunchedPass | None = None
    _ended_at = 0.0  # of the last result

    def launch(self, forward_pass: ForwardPass) -> Callable[[], PassResult]:
        """See ``QueueingBackend.launch``.

        Some passes wait for the one before and are computed at once: those that swap KV, and those
        for which the host must read tokens (grammars, penalties over a pending token, a prompt's
        log probabilities).
        """
        last, self._last = self._last, None
        if not _can_be_queued(forward_pass, last):
            if last is not None:
                self._drawn = last.tokens()
            result = self.run(forward_pass)
            return lambda: result
        launched = self._last = self._queue(forward_pass, last)
        return lambda: self._result(launched)

    def _queue(self, forward_pass: ForwardPass, last: LaunchedPass | None) -> LaunchedPass:
        began_at = time.perf_counter()
        drawn, self._drawn = self._drawn, {}
        late, self._late = self._late, frozenset()
        self._scores.forget(forward_pass.ended)
        self._grammars.forget(forward_pass.ended)
        items = forward_pass.items
        with torch.inference_mode():
            layout = self._layouts.build(
                with_drawn(items, drawn, late) if last is None else _any_token(items)
            )
            if last is not None:
                last.fill_in(layout, items)
            states = self._model.compute(layout)
            drawing = self._begin_draw(states, layout, items)
            hidden = hidden_rows(states, layout, forward_pass)
        return LaunchedPass(
            forward_pass,
            layout,
            {items[n].key: place for place, n in enumerate(layout.sampling_items)},
            drawing,
            began_at,
            None if drawing is None else drawing.fetched(),
            None if hidden is None else fetched(hidden),
            _recorded(self._device),
        )

    def _begin_draw(
        self, states: torch.Tensor, layout: PassLayout, items: Sequence[PassItem]
    ) -> Drawing | None:
        if not layout.sampling_items:
            return None
        logits, chosen = self._logits(states, layout, items)
        return begin_draw(logits, chosen, self.info.eos_token_ids, self._model.decoder.greatest)

    def _result(self, launched: LaunchedPass) -> PassResult:
        """Wait for a pass, which began when it was launched or when the one before had ended."""
        launched.wait()
        began_at, self._ended_at = max(launched.began_at, self._ended_at), time.perf_counter()
        forward_pass, drawing = launched.forward_pass, launched.drawing_at_home
        drawn = [] if drawing is None else drawing.read()
        sampled = self._sampled(drawn, launched.layout, forward_pass.items, NO_MASKS)
        hidden = of_hidden(launched.hidden_at_home, forward_pass)
        return PassResult(forward_pass.pass_id, self._ended_at - began_at, sampled, hidden)


@dataclass(frozen=True, slots=True)
class LaunchedPass:
    """A pass on the device; what is ``at_home`` is read after ``wait``."""

    forward_pass: ForwardPass
    layout: PassLayout
    places: Mapping[StreamKey, int]
    """Rows of the drawing by request, in their order."""
    drawing: Drawing | None
    began_at: float
    drawing_at_home: Drawing | None
    hidden_at_home: torch.Tensor | None
    done: torch.cuda.Event | None

    def fill_in(self, layout: PassLayout, items: Sequence[PassItem]) -> None:
        """Copy its tokens into the rows of the next pass's ``items`` that wait for them."""
        pending = [n for n, item in enumerate(items) if item.token_ids[0] == PENDING]
        if not pending:
            return
        assert self.drawing is not None, "it draws for these requests"
        device = layout.token_ids.device
        of_items = np.array([self.places[items[n].key] for n in pending], np.int64)
        rows = sent(torch.from_numpy(layout.last_rows[pending]), device)
        tokens = self.drawing.tokens.index_select(0, sent(torch.from_numpy(of_items), device))
        layout.token_ids.index_copy_(0, rows, tokens)

    def wait(self) -> None:
        """Wait until it is computed and its results are in the host's memory."""
        if self.done is not None:
            self.done.synchronize()

    def tokens(self) -> dict[StreamKey, int]:
        """Wait for it; return the tokens that it has drawn."""
        self.wait()
        drawn = [] if self.drawing_at_home is None else self.drawing_at_home.read()
        return {
            key: token for key, (token, _) in zip(self.places, drawn, strict=True) if token >= 0
        }


def _can_be_queued(forward_pass: ForwardPass, last: LaunchedPass | None) -> bool:
    """Return whether the host needs no token and no KV of the pass before."""
    if forward_pass.swapped_out or forward_pass.swapped_in or forward_pass.saved:
        return False
    drawn: Collection[StreamKey] = () if last is None else last.places
    return bool(forward_pass.items) and all(
        item.sampling.constraints is None
        and item.sampling.num_prompt_logprobs is None
        and (
            last is None
            or item.token_ids[0] != PENDING
            or (item.key in drawn and not item.sampling.reads_output)
        )
        for item in forward_pass.items
    )


def _any_token(items: Sequence[PassItem]) -> Sequence[PassItem]:
    """Return items with any token in place of pending ones: the device fills these in."""
    return [i._replace(token_ids=(0,)) if i.token_ids[0] == PENDING else i for i in items]


def _recorded(device: torch.device) -> torch.cuda.Event | None:
    """Return an event of what is queued on a GPU."""
    if device.type != "cuda":
        return None
    done: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record(torch.cuda.current_stream(device))
    return done
