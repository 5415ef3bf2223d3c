"""DeepSeek's calls: V3 and R1 put JSON in a block of code, V3.1 right after the name."""

from __future__ import annotations

from services.gateway.tool_calls.source import Called, GrowingText, Reading

ALL, BEGIN, SEP = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
END, ALL_END = "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"
MARKERS = (ALL, BEGIN, SEP, END, ALL_END)


def read(source: GrowingText) -> Reading[None]:
    """Read text, then calls between their markers."""
    if not (yield from source.until(ALL, emit=source.say)):
        return
    while (yield from source.until(BEGIN, ALL_END)) == BEGIN:
        source.mark(BEGIN)
        name, marker = yield from source.collect(SEP)
        if marker and name.strip() == "function":  # V3 writes the kind first
            name, marker = yield from source.collect("\n")
            yield from source.until("\n")  # the line ```json
        if not marker or not name.strip():
            source.give_up()
            break
        source.events.append(Called(name.strip()))
        yield from source.argue()
        yield from source.until(END)
    yield from source.say_rest()
