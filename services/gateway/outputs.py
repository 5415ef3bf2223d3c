"""Outputs that clients wait for: tokens by request id in, pieces of text out."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from headway.core.gateway.events import Delivery
from headway.core.gateway.quotas import expected_output
from headway.core.gateway.shares import Place
from headway.errors import Code, HeadwayError
from headway.request import FinishReason, Request, TokenLogprobs
from services.gateway.metrics import GatewayMetrics
from services.gateway.output_text import NOTHING, OutputText, Piece

OWN_FAULT = frozenset({Code.INVALID_ARGUMENT, Code.NOT_FOUND})
"""Failures that break no promise: the client has to change its request."""


class Reply(Protocol):
    """The reply to one API call, which may have several outputs.

    ``outputs`` is filled before the first token comes. ``keeps_tokens``: whether the reply shows
    token ids or log probabilities. ``keeps_prompt``: whether it shows
    the prompt or its log probabilities. ``streams``: whether its client reads tokens as they come.
    ``says_cut``: whether it can say that a deadline has ended an output.
    """

    outputs: list[Output]
    num_prompt_tokens: int
    ended: bool

    keeps_tokens: bool
    streams: bool
    keeps_prompt: bool
    says_cut: bool

    def hold(self, logprobs: TokenLogprobs) -> None:
        """Count what waits for the end of a reply that does not stream.

        RESOURCE_EXHAUSTED where its client holds too much.
        """

    def explain(self, decision: str) -> None:
        """Take the reason for the place of an output, before it is shown."""

    def show(self, output: Output, piece: Piece, end: str | None) -> None:
        """Show more of one output; ``end`` is ``stop`` or ``length`` with the last of it."""

    def fail(self, error: HeadwayError) -> None:
        """Fail the whole call, once, because one of its outputs failed."""


class Output:
    """One output of one call.

    ``new_token_ids`` and ``new_logprobs`` came since the reply last took them. ``answered_at``:
    instants of its answering tokens if the reply streams, else of the first only.
    ``prompt_logprobs``: of the prompt's tokens, from the second on; None if nobody asks.
    ``num_cached_tokens``: cached tokens of its prompt. Another output of the same prompt
    (``repeats_prompt``) counts none, because the prompt counts once. ``num_expected``: output
    tokens that its client's minute was charged with at its start.
    """

    __slots__ = (
        "_keeps_tokens",
        "_reply",
        "_streams",
        "adapter",
        "answered_at",
        "arrival_at",
        "first_at",
        "index",
        "is_cut",
        "model",
        "new_logprobs",
        "new_token_ids",
        "num_cached_tokens",
        "num_expected",
        "num_prompt_tokens",
        "place",
        "prompt_logprobs",
        "prompt_token_ids",
        "repeats_prompt",
        "request_id",
        "standing",
        "text",
    )

    def __init__(
        self,
        request: Request,
        index: int,
        text: OutputText,
        reply: Reply,
        place: Place,
        *,
        repeats_prompt: bool = False,
    ) -> None:
        self.request_id = request.request_id
        self.standing = request.standing
        self.index = index
        self.text = text
        self.place = place
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.num_expected = expected_output(request)
        self.prompt_token_ids = request.prompt_token_ids if reply.keeps_prompt else ()
        self.prompt_logprobs: Sequence[TokenLogprobs] | None = None
        if request.sampling.num_prompt_logprobs is not None:
            self.prompt_logprobs = ()
        self.model, self.adapter = request.model, request.adapter
        self.arrival_at = request.arrival_at
        self.first_at = 0.0
        self.is_cut = False
        """True if its deadline has ended it."""
        self._keeps_tokens, self._streams = reply.keeps_tokens, reply.streams
        self.answered_at = array("d")
        self.repeats_prompt = repeats_prompt
        self.num_cached_tokens = 0
        self.new_token_ids: list[int] = []
        self.new_logprobs: list[TokenLogprobs | None] = []
        self._reply = reply

    def deliver(self, delivery: Delivery, now: float) -> str | None:
        """Take a token and show what it makes certain.

        Return how the output ended (``stop`` or ``length``), None if it goes on.
        """
        token_id, reason = delivery.token_id, delivery.finish_reason
        text, piece = self.text, None
        if token_id is not None:
            if text.num_tokens == 0:
                self.first_at = now
                self.place.begin()
                self._reply.explain(delivery.decision)
                self.num_cached_tokens = 0 if self.repeats_prompt else delivery.num_cached
                self._take_prompt(delivery.logprobs)
            if self._keeps_tokens:
                self.new_token_ids.append(token_id)
                self.new_logprobs.append(delivery.logprobs)
            if delivery.logprobs is not None and not self._streams:
                self._reply.hold(delivery.logprobs)
            piece = text.push(token_id, ends=reason is FinishReason.STOP)
            if text.num_answer_tokens > len(self.answered_at) and (
                self._streams or not self.answered_at
            ):
                self.answered_at.append(now)
        if reason is None and not text.stopped:
            if piece is not None and piece != NOTHING:
                self._reply.show(self, piece, None)
            return None
        self.is_cut = delivery.is_cut
        rest = text.finish()
        if piece is not None:
            rest = piece.then(rest)
        end = "length" if reason is FinishReason.LENGTH and not text.stopped else "stop"
        self._reply.show(self, rest, end)
        return end

    def _take_prompt(self, logprobs: TokenLogprobs | None) -> None:
        """Keep the prompt's log probabilities; UNAVAILABLE where they are asked for and missing."""
        if self.prompt_logprobs is None:
            return
        self.prompt_logprobs = () if logprobs is None else logprobs.prompt
        if len(self.prompt_logprobs) + 1 != self.num_prompt_tokens:
            message = "the engine gave no log probabilities of the prompt: leave them out"
            raise HeadwayError(Code.UNAVAILABLE, message, param="logprobs")

    def fail(self, error: HeadwayError) -> None:
        """End without a finish reason."""
        self._reply.fail(error)

    def take_tokens(self) -> tuple[Sequence[int], Sequence[TokenLogprobs | None]]:
        """Return and clear the tokens received since the last call."""
        taken = self.new_token_ids, self.new_logprobs
        self.new_token_ids, self.new_logprobs = [], []
        return taken


class Outputs:
    """All open outputs, by request id.

    ``release`` tells the core that an output is no longer wanted. ``observe`` gets model,
    prompt tokens and output tokens of each finished output. ``unexpected`` logs a bug.
    ``note_end`` gets every output that ends, and how: ``stop``, ``length``, ``cancelled``, a code.
    ``now`` returns the seconds since the epoch.
    """

    def __init__(
        self,
        metrics: GatewayMetrics,
        release: Callable[[str], None],
        observe: Callable[[str, int, int], None],
        unexpected: Callable[[Exception, str], None],
        now: Callable[[], float],
        note_end: Callable[[Output, str], None] = lambda output, end: None,
    ) -> None:
        self._metrics = metrics
        self._release = release
        self._observe = observe
        self._unexpected = unexpected
        self._now = now
        self._note_end = note_end
        self._open: dict[str, Output] = {}

    def __len__(self) -> int:
        return len(self._open)

    def model_of(self, request_id: str) -> str:
        """Return the model of an open output, "" for another."""
        output = self._open.get(request_id)
        return "" if output is None else output.model

    def add(self, output: Output) -> None:
        """Wait for its tokens."""
        self._open[output.request_id] = output

    def deliver(self, deliveries: Sequence[Delivery], now: float) -> None:
        """Bring tokens to their clients."""
        self._metrics.count("output_tokens", by=len(deliveries))
        for delivery in deliveries:
            output = self._open.get(delivery.request_id)
            if output is None:
                continue  # its client has just left; the core will learn of it
            try:
                end = output.deliver(delivery, now)
            except HeadwayError as error:
                self.fail(delivery.request_id, error)
                self._release(delivery.request_id)
                continue
            except Exception as error:  # one client's error must not affect others
                self._broken(output, error)
                continue
            if end is not None:
                # The reply may have released it in the meantime.
                if self._close(output.request_id) is not None:
                    self._finished(output, end, now)
                if delivery.finish_reason is None:
                    self._release(output.request_id)

    def fail(self, request_id: str, error: HeadwayError) -> None:
        """End an output that the core gave up."""
        output = self._close(request_id)
        if output is not None:
            self._metrics.finished("error", 0, 0, ())
            self._count(output, "error")
            if error.code not in OWN_FAULT:
                self._unkept(output, left=False)
            self._metrics.count("errors", error.code.value)
            self._note_end(output, error.code.value)
            output.fail(error)

    def let_go(self, outputs: Iterable[Output], error: HeadwayError | None = None) -> None:
        """Stop outputs and free their KV blocks: their call failed, or (None) its client left."""
        for output in outputs:
            if self._close(output.request_id) is not None:
                self._metrics.finished("cancelled", 0, 0, ())
                self._count(output, "cancelled")
                if error is None or error.code not in OWN_FAULT:
                    self._unkept(output, left=error is None)
                self._note_end(output, "cancelled")
                self._release(output.request_id)

    def _close(self, request_id: str) -> Output | None:
        output = self._open.pop(request_id, None)
        if output is not None:
            output.place.end()
        return output

    def _count(self, output: Output, end: str) -> None:
        num_tokens = output.num_prompt_tokens, output.text.num_tokens
        self._metrics.standings.ended(output.standing, end, num_tokens)

    def _unkept(self, output: Output, *, left: bool) -> None:
        times = (output.arrival_at, output.first_at, self._now())
        answered_at = output.answered_at[0] if output.answered_at else None
        self._metrics.standings.unfinished(
            output.standing, times, answered_at, output.text.num_tokens, left=left
        )

    def _broken(self, output: Output, error: Exception) -> None:
        self._unexpected(error, output.request_id)
        self.fail(
            output.request_id, HeadwayError(Code.INTERNAL, "the gateway failed; it is logged")
        )
        self._release(output.request_id)

    def _finished(self, output: Output, end: str, now: float) -> None:
        num_output = output.text.num_tokens
        self._note_end(output, end)
        times = (output.arrival_at, output.first_at, now)
        self._count(output, end)
        answered_at = output.answered_at[0] if output.answered_at else None
        self._metrics.standings.finished(output.standing, times, answered_at, num_output)
        self._metrics.finished(end, output.num_prompt_tokens, num_output, times, output.request_id)
        if num_output:
            self._metrics.count("cached_prompt_tokens", by=output.num_cached_tokens)
            reasoned = output.text.num_reasoning_tokens
            self._metrics.answered(output.arrival_at, output.answered_at, reasoned)
        self._observe(output.model, output.num_prompt_tokens, num_output)
