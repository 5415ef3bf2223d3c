"""``off``: no request is ever in a burst."""

from __future__ import annotations

from headway.policies.answer import Answer
from headway.policies.burst.protocol import Label

_NEVER = Label(False, "", 0.0, 0.0)


class Off:
    """A detector that labels nothing."""

    labels = False

    def arrived(self, num_input_tokens: int, *, now: float) -> Label:
        """Label it as no burst."""
        return _NEVER


ANSWER = Answer("off", Off, "what a plain deployment does")
