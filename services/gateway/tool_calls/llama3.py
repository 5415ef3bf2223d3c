"""Llama 3's calls: the answer is ``{"name": …, "parameters": {…}}``, or several with ``;``."""

from __future__ import annotations

from services.gateway.tool_calls.source import GrowingText, Reading

TAG = "<|python_tag|>"
MARKERS = (TAG,)


def read(source: GrowingText) -> Reading[None]:
    """Read an answer that is calls, or text alone."""
    source.mark()
    first = yield from source.skip_spaces()
    if first == "<":
        before, tag = yield from source.collect(TAG)
        if not tag:
            source.say(before)
            return
        first = yield from source.skip_spaces()
    while first == "{":
        if not (yield from source.call_object()):
            break
        source.mark()
        first = yield from source.skip_spaces()
        if first == ";":
            source.take(1)
            first = yield from source.skip_spaces()
    source.give_up()
    yield from source.say_rest()
