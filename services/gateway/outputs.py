"""The outputs that clients wait for: tokens come in by request id, pieces of text go out."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from headway.core.gateway.events import Delivery
from headway.errors import Code, HeadwayError
from headway.request import FinishReason, TokenLogprobs
from services.gateway.metrics import GatewayMetrics
from services.gateway.output_text import OutputText, Piece


class Reply(Protocol):
    """One API call's answer; it may have several outputs."""

    def show(self, output: Output, piece: Piece, end: str | None) -> None:
        """More of one output; ``end`` is ``stop`` or ``length`` with the last of it."""

    def fail(self, error: HeadwayError) -> None:
        """One of the outputs failed: the whole call does, once."""


class Output:
    """One output of one call. ``new_token_ids`` and ``new_logprobs`` are what came since the
    reply last took them; they are kept only where ``keeps_tokens``. ``num_cached_tokens`` of its
    prompt were not computed; another output of the same prompt (``repeats_prompt``) counts none,
    as the prompt counts once. ``answered_at``: instants of its answering tokens, where they are
    read as they come (``is_read``), else that of the first alone."""

    __slots__ = (
        "_reply",
        "answered_at",
        "arrival_at",
        "first_at",
        "index",
        "is_read",
        "keeps_tokens",
        "new_logprobs",
        "new_token_ids",
        "num_cached_tokens",
        "num_prompt_tokens",
        "repeats_prompt",
        "request_id",
        "text",
    )

    def __init__(
        self,
        request_id: str,
        index: int,
        text: OutputText,
        reply: Reply,
        *,
        num_prompt_tokens: int,
        arrival_at: float,
        keeps_tokens: bool = False,
        is_read: bool = True,
        repeats_prompt: bool = False,
    ) -> None:
        self.request_id = request_id
        self.index = index
        self.text = text
        self.num_prompt_tokens = num_prompt_tokens
        self.arrival_at = arrival_at
        self.first_at = 0.0
        self.keeps_tokens = keeps_tokens
        self.is_read = is_read
        self.answered_at = array("d")
        self.repeats_prompt = repeats_prompt
        self.num_cached_tokens = 0
        self.new_token_ids: list[int] = []
        self.new_logprobs: list[TokenLogprobs | None] = []
        self._reply = reply

    def deliver(self, delivery: Delivery, now: float) -> str | None:
        """Take a token, show what it makes certain; how the output ended, None if it goes on."""
        _, token_id, logprobs, reason, _, num_cached = delivery
        text, piece = self.text, None
        if token_id is not None:
            if text.num_tokens == 0:
                self.first_at = now
                self.num_cached_tokens = 0 if self.repeats_prompt else num_cached
            if self.keeps_tokens:
                self.new_token_ids.append(token_id)
                self.new_logprobs.append(logprobs)
            piece = text.push(token_id)
            if text.num_answer_tokens > len(self.answered_at) and (
                self.is_read or not self.answered_at
            ):
                self.answered_at.append(now)
        if reason is None and not text.stopped:
            if piece is not None and (piece.answer or piece.reasoning):
                self._reply.show(self, piece, None)
            return None
        rest = text.finish()
        if piece is not None:
            rest = Piece(piece.reasoning + rest.reasoning, piece.answer + rest.answer)
        end = "length" if reason is FinishReason.LENGTH and not text.stopped else "stop"
        self._reply.show(self, rest, end)
        return end

    def fail(self, error: HeadwayError) -> None:
        """It ended otherwise."""
        self._reply.fail(error)

    def take_tokens(self) -> tuple[Sequence[int], Sequence[TokenLogprobs | None]]:
        """What came since the last time."""
        taken = self.new_token_ids, self.new_logprobs
        self.new_token_ids, self.new_logprobs = [], []
        return taken


class Outputs:
    """All open outputs by request id.

    ``release`` tells the core that an output is not wanted any more; ``observe`` is told of
    each finished one: prompt and output tokens; ``unexpected`` logs a bug.
    """

    def __init__(
        self,
        metrics: GatewayMetrics,
        release: Callable[[str], None],
        observe: Callable[[int, int], None],
        unexpected: Callable[[Exception, str], None],
    ) -> None:
        self._metrics = metrics
        self._release = release
        self._observe = observe
        self._unexpected = unexpected
        self._open: dict[str, Output] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, output: Output) -> None:
        """Wait for its tokens."""
        self._open[output.request_id] = output

    def deliver(self, deliveries: Sequence[Delivery], now: float) -> None:
        """Bring tokens to their clients."""
        self._metrics.tokens(len(deliveries))
        for delivery in deliveries:
            output = self._open.get(delivery.request_id)
            if output is None:
                continue  # its client has just left; the core is being told
            try:
                end = output.deliver(delivery, now)
            except Exception as error:  # one client's trouble must not be another's
                self._broken(output, error)
                continue
            if end is not None:
                # The reply may have let go of it in the meantime.
                if self._open.pop(output.request_id, None) is not None:
                    self._finished(output, end, now)
                if delivery.finish_reason is None:
                    self._release(output.request_id)

    def fail(self, request_id: str, error: HeadwayError) -> None:
        """The core gave it up."""
        output = self._open.pop(request_id, None)
        if output is not None:
            self._metrics.finished("error", 0, 0, ())
            self._metrics.error(error.code.value)
            output.fail(error)

    def let_go(self, outputs: Iterable[Output]) -> None:
        """Their client is gone, or its call has failed: stop them down to their KV blocks."""
        for output in outputs:
            if self._open.pop(output.request_id, None) is not None:
                self._metrics.finished("cancelled", 0, 0, ())
                self._release(output.request_id)

    def _broken(self, output: Output, error: Exception) -> None:
        self._unexpected(error, output.request_id)
        self.fail(
            output.request_id, HeadwayError(Code.INTERNAL, "the gateway failed; it is logged")
        )
        self._release(output.request_id)

    def _finished(self, output: Output, end: str, now: float) -> None:
        num_output = output.text.num_tokens
        times = (output.arrival_at, output.first_at, now)
        self._metrics.finished(end, output.num_prompt_tokens, num_output, times)
        if num_output:
            reasoned = output.text.num_reasoning_tokens
            self._metrics.answered(output.arrival_at, output.answered_at, reasoned)
        self._observe(output.num_prompt_tokens, num_output)
