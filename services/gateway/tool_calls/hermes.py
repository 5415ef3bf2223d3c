"""Hermes' and Qwen's calls: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``."""

from __future__ import annotations

from services.gateway.tool_calls.source import Frame, GrowingText, Reading

BEGIN, END = "<tool_call>", "</tool_call>"
MARKERS = (BEGIN, END)
FRAME = Frame(BEGIN, '\n{{"name": "{name}", "arguments": ', f"}}\n{END}")


def read(source: GrowingText) -> Reading[None]:
    """Read text with calls between its markers."""
    while (yield from source.until(BEGIN, emit=source.say)):
        source.mark(BEGIN)
        is_object = (yield from source.skip_spaces()) == "{"
        if not is_object or not (yield from source.call_object()):
            source.give_up()
            continue
        yield from source.until(END)
        yield from source.skip_spaces()
