"""Answers of ``POST /v1/responses``: items of reasoning, text and calls, whole or as events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from services.gateway.api_call import ResponseHistory
from services.gateway.openai.json import new_call_id
from services.gateway.openai.replies import ItemReply
from services.gateway.openai.responses import continued
from services.gateway.outputs import Output
from services.gateway.tool_calls import CallPiece

Json = dict[str, Any]
Keep = Callable[[str, ResponseHistory], None]
"""A function that stores a response by its id."""


class ResponseReply(ItemReply):
    """A reply with OpenAI's items."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._id = f"resp_{self.identity.call_id.partition('-')[2]}"
        self._items: list[Json] = []
        self._open: Json | None = None  # the last item, while it grows
        self._newest_call: Json = {}
        self._num_events = 0
        self.keep: Keep = _keep_none

    def _begin(self) -> None:
        first = self._response("in_progress")
        self._tell("created", response=first)
        self._tell("in_progress", response=first | _SHORT)

    def _finish(self, output: Output, end: str) -> Json:
        self._close()
        status = "incomplete" if end == "length" else "completed"
        response = self._response(status)
        self._tell(status, response=response)
        if self.style.history is not None:
            self.keep(self._id, continued(self.style.history, response["output"]))
        return response

    # --- items ------------------------------------------------------------------------

    def _grow(self, kind: str, text: str) -> None:
        item = self._open
        if item is None or item["type"] != kind:
            self._close()
            item = self._begin_item(kind)
            self._tell("content_part.added", **_place(item), part=dict(item["content"][0]))
        part = item["content"][0]
        part["text"] += text
        self._tell(f"{part['type']}.delta", **_place(item), delta=text, logprobs=[])

    def _begin_item(self, kind: str) -> Json:
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
                "output_item.added", output_index=number, item=_item_form(item) | {"content": []}
            )
        return item

    def _call(self, piece: CallPiece) -> None:
        if piece.name:
            self._close()
            item = self._begin_item("function_call")
            item |= {"call_id": new_call_id(), "name": piece.name, "arguments": ""}
            self._tell(
                "output_item.added", output_index=item["output_index"], item=_item_form(item)
            )
            self._newest_call = item
        item = self._newest_call
        if piece.arguments:
            item["arguments"] += piece.arguments
            self._tell("function_call_arguments.delta", **_place(item), delta=piece.arguments)

    def _close(self) -> None:
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
        self._tell("output_item.done", output_index=item["output_index"], item=_item_form(item))

    # --- events -----------------------------------------------------------------------

    def _tell(self, kind: str, **said: Any) -> None:
        number, self._num_events = self._num_events, self._num_events + 1
        self._event(f"response.{kind}", sequence_number=number, **said)

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
            "output": [_item_form(item) for item in self._items],
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


def _item_form(item: Json) -> Json:
    return {name: value for name, value in item.items() if name != "output_index"}


def _place(item: Json) -> Json:
    place = {"item_id": item["id"], "output_index": item["output_index"]}
    return place if item["type"] == "function_call" else {**place, "content_index": 0}
