"""Cases of DSPy: its language model, and a signature with its markers."""

from __future__ import annotations

from typing import Any

import dspy

from .asked import KEY, SECONDS, SUM, TOTAL, At, cases


def lm(at: At, **more: Any) -> Any:
    """Return the language model."""
    fields = {"temperature": 0, "max_tokens": 900, "timeout": SECONDS, "cache": False, **more}
    return dspy.LM(f"openai/{at.model}", api_base=at.v1, api_key=KEY, **fields)


def _text(choice: Any) -> str:
    return choice["text"] if isinstance(choice, dict) else str(choice)


def call(at: At) -> None:
    assert _text(lm(at)(SUM)[0]) == TOTAL


def signature(at: At) -> None:
    with dspy.context(lm=lm(at), adapter=dspy.ChatAdapter()):
        assert str(dspy.Predict("task: str -> total: int")(task=SUM).total) == TOTAL


CASES = cases(call, signature)
