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
        if not (yield from source.until(TAG, emit=source.say)):
            return
        source.mark(TAG)
        first = yield from source.skip_spaces()
    while first == "{":
        if not (yield from source.call_object()):
            break
        source.mark()
        first = yield from source.skip_spaces()
        if first == ";":
            source.take(1)
            first = yield from source.skip_spaces()
        if not first:
            return  # spaces after the last call are nobody's
    source.give_up()
    yield from source.say_rest()
