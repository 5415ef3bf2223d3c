"""SmolLM2-135M-Instruct, where ``make real-model`` has put it; tests without it are skipped."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from transformers import AutoTokenizer

from models.real import FOLDER, is_there

REAL_MODEL = str(FOLDER)
QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about rain.",
    "Name three primary colours.",
    "How many legs does a spider have?",
    "Explain in one sentence why the sky is blue.",
    "Translate 'good morning' into Spanish.",
    "Which is larger, a mile or a kilometre?",
    "Give me a recipe for pancakes.",
)

needs_real_model = pytest.mark.skipif(
    not is_there(), reason="run/smollm2 is not there: `make real-model` fetches it"
)


@cache
def chat_tokens(question: str) -> tuple[int, ...]:
    """The prompt of one user message."""
    tokenizer: Any = AutoTokenizer.from_pretrained(REAL_MODEL)
    messages = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
