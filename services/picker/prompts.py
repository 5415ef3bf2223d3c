"""What a body says of its request; the body itself is passed on as it came."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headway.core.picker.core import GATEWAY_ID
from headway.core.picker.events import MOST_TOKENS
from headway.errors import HeadwayError
from headway.request import Request, SamplingParams
from headway.service_class import ServiceClass, ServiceClasses, Standing
from services.gateway.model_files import read_model
from services.gateway.tokenizer import TextCodec

_BYTES_PER_TOKEN = 4
"""Bytes that count as a token where no tokenizer is given: an array's machine word, too."""
_DEFAULT_OUTPUT = 256
"""Output tokens of a request that does not say how many it wants."""
_PARTS = ("instructions", "system", "tools", "messages", "prompt", "input", "text")
"""Fields that make up a prompt, in the order in which templates use them."""
CLASS, OBJECTIVE = "x-headway-class", "x-gateway-inference-objective"
FAIRNESS = "x-gateway-inference-fairness-id"
"""Headers: a class by its name (the second is that of InferenceObjective), and a tenant."""
_MOST_NAME = 256
_MOST_TOKENS, _MOST_CHARS = 2**20, 2**22
"""The part of a prompt's beginning that is read; no context is longer."""


class Prompts:
    """Makes requests of bodies. ``model``: the one whose tokenizer counts; "": by bytes."""

    def __init__(self, classes: ServiceClasses, model: str = "") -> None:
        self._classes = classes
        self._files = read_model(model) if model else None
        self._codec: TextCodec | None = None
        if self._files is not None:
            self._codec = TextCodec.load(self._files.folder, self._files.vocab_size)

    def request_of(
        self,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        stream_id: int,
        model: str,
        now: float,
    ) -> Request:
        """Return the request of a body, which may be anything that its endpoint will refuse."""
        salt = body.get("cache_salt")
        return Request(
            request_id=headers.get("x-request-id", "")[:_MOST_NAME] or f"picked-{stream_id}",
            model=model,
            prompt_token_ids=self._tokens(body)[:_MOST_TOKENS] or (0,),
            sampling=SamplingParams(max_tokens=_output_tokens(body)),
            arrival_at=now,
            stream_id=stream_id,
            gateway_id=GATEWAY_ID,
            is_read=body.get("stream") is True,
            cache_salt=salt if isinstance(salt, str) else "",
            standing=self._standing(body, headers),
        )

    def _tokens(self, body: Mapping[str, Any]) -> Sequence[int]:
        prompt = body.get("prompt")
        if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
            return tuple(token for token in prompt if 0 <= token < 2**32)
        if self._codec is not None and self._files is not None:
            try:
                if isinstance(prompt, str):
                    return self._codec.encode(prompt[:_MOST_CHARS], add_special_tokens=True)
                messages = body.get("messages")
                if self._files.template is not None and isinstance(messages, list):
                    tools = body.get("tools") or ()
                    options = body.get("chat_template_kwargs") or {}
                    text = self._files.template.render(_plain(messages), options, tools)
                    return self._codec.encode(text[:_MOST_CHARS], add_special_tokens=False)
            except (HeadwayError, TypeError, AttributeError, ValueError):
                pass  # the endpoint has the word on a body that is wrong
        return _by_bytes(body)

    def _standing(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> Standing:
        """Return class and tenant; a class that there is not counts as none."""
        priority, name = body.get("priority"), headers.get(CLASS) or headers.get(OBJECTIVE, "")
        service: ServiceClass | None = self._classes.by_name.get(name)
        if service is None and type(priority) is int:
            service = self._classes.of_priority(priority)
        service = service or self._classes.by_name.get(self._classes.default)
        return Standing(tenant=headers.get(FAIRNESS, "")[:_MOST_NAME], service=service)


def _plain(messages: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Return messages whose parts of text are one text, as vLLM renders them."""
    return [
        {**each, "content": "\n".join(_texts(each["content"]))}
        if isinstance(each.get("content"), list)
        else each
        for each in messages
    ]


def _output_tokens(body: Mapping[str, Any]) -> int:
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        value = body.get(name)
        if type(value) is int and 1 <= value <= MOST_TOKENS:
            return value
    return _DEFAULT_OUTPUT


def _by_bytes(body: Mapping[str, Any]) -> Sequence[int]:
    """Return a prompt's text as words of four bytes, so that equal beginnings are equal words."""
    parts = (text for name in _PARTS if name in body for text in _texts(body[name]))
    data = "\x1e".join(parts).encode("utf-8", "replace")
    return array("I", data[: len(data) // _BYTES_PER_TOKEN * _BYTES_PER_TOKEN])


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts of a value, in order. Each costs the same, however deep it is."""
    unread: list[Iterator[Any]] = [iter((value,))]
    while unread:
        for each in unread[-1]:
            match each:
                case str():
                    yield each
                case {"role": str(role), "content": str(content)} if len(each) == 2:
                    yield role
                    yield content
                case dict():
                    unread.append(iter(each.values()))
                    break
                case list():
                    unread.append(iter(each))
                    break
                case int() | float():
                    yield json.dumps(each)
        else:
            unread.pop()
