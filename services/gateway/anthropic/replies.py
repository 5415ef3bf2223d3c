"""Answers of ``POST /v1/messages``: blocks of thinking, text and calls, whole or as events."""

from __future__ import annotations

import math
from typing import Any

from headway.errors import Code, HeadwayError
from services.gateway.openai.json import dumps, new_call_id, status_of
from services.gateway.openai.replies import JSON, ItemReply, ResponseWriter
from services.gateway.openai.shapes import parse_json_object
from services.gateway.outputs import Output
from services.gateway.tool_calls import CallPiece

Json = dict[str, Any]

_FIELDS = {"text": "text", "thinking": "thinking", "tool_use": "partial_json"}
"""The field of a block's change, by its type."""
_ERRORS = {
    Code.INVALID_ARGUMENT: "invalid_request_error",
    Code.UNAUTHENTICATED: "authentication_error",
    Code.PERMISSION_DENIED: "permission_error",
    Code.NOT_FOUND: "not_found_error",
    Code.RESOURCE_EXHAUSTED: "rate_limit_error",
    Code.DEADLINE_EXCEEDED: "timeout_error",
    Code.UNAVAILABLE: "overloaded_error",
    Code.FAILED_PRECONDITION: "overloaded_error",
}


class MessagesReply(ItemReply):
    """A reply with Anthropic's blocks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._id = f"msg_{self.identity.call_id.partition('-')[2]}"
        self._blocks: list[Json] = []
        self._grows = False  # the last block
        self._arguments = ""  # of the last call

    def _begin(self) -> None:
        self._event("message_start", message=self._message(None, None))

    def _grow(self, kind: str, text: str) -> None:
        kind = "thinking" if kind == "reasoning" else "text"
        if not self._grows or self._blocks[-1]["type"] != kind:
            signature = {"signature": ""} if kind == "thinking" else {}
            self._open({"type": kind, kind: "", **signature})
        self._blocks[-1][kind] += text
        self._change(f"{kind}_delta", text)

    def _call(self, piece: CallPiece) -> None:
        if piece.name:
            self._open({"type": "tool_use", "id": new_call_id(), "name": piece.name, "input": {}})
        if piece.arguments:
            self._arguments += piece.arguments
            self._change("input_json_delta", piece.arguments)

    def _open(self, block: Json) -> None:
        self._close()
        self._grows = True
        self._event("content_block_start", index=len(self._blocks), content_block={**block})
        self._blocks.append(block)

    def _change(self, kind: str, text: str) -> None:
        delta = {"type": kind, _FIELDS[self._blocks[-1]["type"]]: text}
        self._event("content_block_delta", index=len(self._blocks) - 1, delta=delta)

    def _close(self) -> None:
        if not self._grows:
            return
        self._grows = False
        if self._blocks[-1]["type"] == "tool_use":
            self._blocks[-1]["input"], self._arguments = _input_of(self._arguments), ""
        self._event("content_block_stop", index=len(self._blocks) - 1)

    def _finish(self, output: Output, end: str) -> Json:
        self._close()
        stop = output.text.stop or None
        reason = "stop_sequence" if stop else "end_turn"
        if end == "length":
            is_whole = output.text.num_tokens >= self.style.max_tokens or output.is_cut
            reason = "max_tokens" if is_whole else "model_context_window_exceeded"
        elif output.text.num_calls:
            reason, stop = "tool_use", None
        delta = {"stop_reason": reason, "stop_sequence": stop}
        self._event("message_delta", delta=delta, usage=self._counts())
        self._event("message_stop")
        return self._message(reason, stop)

    def _message(self, reason: str | None, stop: str | None) -> Json:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self.identity.model,
            "content": self._blocks,
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": self._counts(),
        }

    def _counts(self) -> Json:
        usage = self._usage()
        return {
            "input_tokens": usage.prompt_tokens - usage.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        }

    def _refuse(self, error: HeadwayError) -> None:
        if self.exchange.started:
            data = f"event: error\ndata: {_error_body(error)}\n\n"
            self.exchange.write(data.encode(), last=True)
        else:
            respond_messages_error(self.exchange, error)


def respond_messages_error(exchange: ResponseWriter, error: HeadwayError, status: int = 0) -> None:
    """Respond with Anthropic's error object; ``status`` is more exact than the error's own."""
    if error.retry_after > 0:
        exchange.add_header("retry-after", str(math.ceil(error.retry_after)))
    body = _error_body(error, status).encode()
    exchange.respond(status or status_of(error.code), JSON, body)


def _error_body(error: HeadwayError, status: int = 0) -> str:
    kind = "request_too_large" if status == 413 else _ERRORS.get(error.code, "api_error")
    return dumps({"type": "error", "error": {"type": kind, "message": error.message}})


def _input_of(arguments: str) -> Json:
    """Return a call's arguments; those that are no JSON object go in one field, as Anthropic's."""
    try:
        return parse_json_object((arguments or "{}").encode("utf-8", "surrogatepass"))
    except HeadwayError:
        return {"INVALID_JSON": arguments}
