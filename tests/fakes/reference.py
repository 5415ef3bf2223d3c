"""What ``model.generate()`` says, for comparison."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


@cache
def _loaded(model: str) -> tuple[Any, Any]:
    torch.set_num_threads(1)
    network: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    network.eval()
    return network, AutoTokenizer.from_pretrained(model)


@cache
def greedy_text(model: str, prompt: str) -> tuple[str, str]:
    """Reasoning and answer to one user message, greedily."""
    network, tokenizer = _loaded(model)
    messages = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    inputs = tokenizer(text, return_tensors="pt", add_special_tokens=False)
    with torch.inference_mode():
        output = network.generate(**inputs, do_sample=False, max_length=2048)
    whole = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    reasoning, _, answer = whole.partition("</think>")
    return reasoning.removeprefix("<think>").strip("\n"), answer.strip("\n")
