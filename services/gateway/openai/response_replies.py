"""Answers of ``POST /v1/responses``: items of reasoning, text and calls, whole or as events."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Any

from services.gateway.api_call import ResponseHistory
from services.gateway.openai.json import dumps, new_call_id
from services.gateway.openai.replies import EVENTS, JSON, HttpReplyBase
from services.gateway.openai.responses import continued
from services.gateway.output_text import Piece
from services.gateway.outputs import Output
from services.gateway.tool_calls import CallPiece

Json = dict[str, Any]
Keep = Callable[[str, ResponseHistory], None]
"""A function that stores a response by its id."""


class ResponseReply(HttpReplyBase):
    """A reply with one output; in a stream every change of an item is an event."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._id = f"resp_{self.identity.call_id.partition('-')[2]}"
        self._items: list[Json] = []
        self._open: Json | None = None  # the last item, while it grows
        self._newest_call: Json = {}
        self._events: list[str] = []
        self._num_events = 0
        self.keep: Keep = _keep_none

    def show(self, output: Output, piece: Piece, end: str | None) -> None:
        """Take more of the output; answer with the last of it."""
        if not self._num_events:
            first = self._response("in_progress")
            self._tell("created", response=first)
            self._tell("in_progress", response=first | _SHORT)
        begun = list(takewhile(lambda call: not call.name, piece.calls))
        for call in begun:  # the rest of a call is before the text that came with it
            self._call(call)
        if piece.reasoning:
            self._grow("reasoning", piece.reasoning)
        if piece.answer:
            self._grow("message", piece.answer)
        for call in piece.calls[len(begun) :]:
            self._call(call)
        if end is not None:
            self._finish(end)
        if self.style.stream:
            if not self.exchange.started:
                self.exchange.start(200, EVENTS)
            data, self._events = "".join(self._events), []
            self.exchange.write(data.encode(), last=end is not None)

    def _finish(self, end: str) -> None:
        self._close()
        status = "incomplete" if end == "length" else "completed"
        response = self._response(status)
        self._tell(status, response=response)
        if self.style.history is not None:
            self.keep(self._id, continued(self.style.history, response["output"]))
        self._end()
        if not self.style.stream:
            self.exchange.respond(200, JSON, dumps(response).encode())

    # --- items ------------------------------------------------------------------------

    def _grow(self, kind: str, text: str) -> None:
        item = self._open
        if item is None or item["type"] != kind:
            self._close()
            item = self._begin(kind)
            self._tell("content_part.added", **_place(item), part=dict(item["content"][0]))
        part = item["content"][0]
        part["text"] += text
        self._tell(f"{part['type']}.delta", **_place(item), delta=text, logprobs=[])

    def _begin(self, kind: str) -> Json:
        number = len(self._items)
        item: Json = {"id": f"{_PREFIX[kind]}_{self._id[5:]}_{number}", "type": kind}
        item |= {"status": "in_progress", "output_index": number}
        if kind == "message":
            part = {"type": "output_text", "text": "", "annotations": []}
            item |= {"role": "assistant", "content": [part]}
        elif kind == "reasoning":
            item |= {"summary": [], "content": [{"type": "reasoning_text", "text": ""}]}
        self._items.append(item)
        self._open = item
        if kind != "function_call":
            self._tell(
                "output_item.added", output_index=number, item=_shown(item) | {"content": []}
            )
        return item

    def _call(self, piece: CallPiece) -> None:
        if piece.name:
            self._close()
            item = self._begin("function_call")
            item |= {"call_id": new_call_id(), "name": piece.name, "arguments": ""}
            self._tell("output_item.added", output_index=item["output_index"], item=_shown(item))
            self._newest_call = item
        item = self._newest_call
        if piece.arguments:
            item["arguments"] += piece.arguments
            self._tell("function_call_arguments.delta", **_place(item), delta=piece.arguments)

    def _close(self) -> None:
        """End the item that grows."""
        item, self._open = self._open, None
        if item is None:
            return
        item["status"] = "completed"
        if item["type"] == "function_call":
            done = {"arguments": item["arguments"], "name": item["name"]}
            self._tell("function_call_arguments.done", **_place(item), **done)
        else:
            part = item["content"][0]
            self._tell(f"{part['type']}.done", **_place(item), text=part["text"], logprobs=[])
            self._tell("content_part.done", **_place(item), part=part)
        self._tell("output_item.done", output_index=item["output_index"], item=_shown(item))

    # --- events -----------------------------------------------------------------------

    def _tell(self, kind: str, **said: Any) -> None:
        number, self._num_events = self._num_events, self._num_events + 1
        if self.style.stream:
            event = {"type": f"response.{kind}", "sequence_number": number, **said}
            self._events.append(f"event: response.{kind}\ndata: {dumps(event)}\n\n")

    def _response(self, status: str) -> Json:
        usage = self._usage()
        counts = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self._id,
            "object": "response",
            "created_at": self.identity.created,
            "status": status,
            "model": self.identity.model,
            "output": [_shown(item) for item in self._items],
            "usage": None if status == "in_progress" else counts,
            "incomplete_details": cut,
            "error": None,
            **self.style.echoed,
            "store": self.style.history is not None,
        }


_SHORT: Json = {"instructions": None, "metadata": {}, "tools": []}
"""The long fields of a request, which its second event does not repeat."""
_PREFIX = {"message": "msg", "reasoning": "rs", "function_call": "fc"}


def _keep_none(response_id: str, history: ResponseHistory) -> None:
    """Store nothing."""


def _shown(item: Json) -> Json:
    return {name: value for name, value in item.items() if name != "output_index"}


def _place(item: Json) -> Json:
    place = {"item_id": item["id"], "output_index": item["output_index"]}
    return place if item["type"] == "function_call" else {**place, "content_index": 0}
