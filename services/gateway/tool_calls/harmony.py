"""gpt-oss's harmony: messages in channels; ``analysis`` is reasoning, ``final`` the answer.

A message of another channel with ``to=functions.NAME`` in its head is a call. Without one it is
text for the user, as before a call. An answer without any channel is text.
"""

from __future__ import annotations

import re

from services.gateway.tool_calls.source import Called, GrowingText, Reading, ThoughtText

MESSAGE, END, CALL, RETURN = "<|message|>", "<|end|>", "<|call|>", "<|return|>"
CHANNEL, BEGIN, CONSTRAIN = "<|channel|>", "<|start|>", "<|constrain|>"
MARKERS = (MESSAGE, END, CALL, RETURN, CHANNEL, BEGIN, CONSTRAIN)
_CALLED = re.compile(r"to=functions\.([\w.:-]+)")


def read(source: GrowingText) -> Reading[None]:
    """Read messages, each with a head that says what it is."""
    is_first = True
    while True:
        head, marker = yield from source.collect(MESSAGE)
        if not marker:
            if is_first and CHANNEL not in head:
                source.say(head)
            return
        is_first = False
        called = _CALLED.search(head)
        if called is not None:
            source.events.append(Called(called.group(1)))
            yield from source.argue()
            yield from source.until(END, CALL, RETURN)
        elif "analysis" in head:
            yield from source.until(
                END, RETURN, emit=lambda text: source.events.append(ThoughtText(text))
            )
        else:
            yield from source.until(END, RETURN, CALL, emit=source.say)
