"""Mistral's calls: ``[TOOL_CALLS] [{"name": …}, …]``, or newer ``[TOOL_CALLS]name[ARGS]{…}``."""

from __future__ import annotations

from services.gateway.tool_calls.source import Called, GrowingText, Reading

BEGIN, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
MARKERS = (BEGIN, CALL_ID, ARGS)


def read(source: GrowingText) -> Reading[None]:
    """Read text with calls after their marker."""
    while (yield from source.until(BEGIN, emit=source.say)):
        source.mark(BEGIN)
        first = yield from source.skip_spaces()
        if first == "[":
            source.take(1)
            yield from _objects(source)
        elif first == "{":  # one call, and no list
            if not (yield from source.call_object()):
                source.give_up()
        elif first:
            yield from _named(source)


def _objects(source: GrowingText) -> Reading[None]:
    while (char := (yield from source.skip_spaces())) in ("{", ","):
        if char == ",":
            source.take(1)
        elif not (yield from source.call_object()):
            source.give_up()
            return
        source.mark()  # what was read is a call's
    if char == "]":
        source.take(1)


def _named(source: GrowingText) -> Reading[None]:
    name, marker = yield from source.collect(CALL_ID, ARGS, "{")
    if not marker or not name.strip():
        source.give_up()
        return
    source.events.append(Called(name.strip()))
    if marker == CALL_ID:
        yield from source.until(ARGS)
    if marker == "{":
        source.text = "{" + source.text  # of the arguments
    yield from source.argue()
