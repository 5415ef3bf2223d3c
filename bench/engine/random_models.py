"""Models of a known shape with random weights: speed does not depend on what they say."""

from __future__ import annotations

from typing import Any


def save_half_billion(folder: str, dtype: str) -> None:
    """A checkpoint of Qwen2.5-0.5B's shape."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = Qwen2Config(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    factory: Any = AutoModelForCausalLM
    factory.from_config(config, dtype=getattr(torch, dtype)).save_pretrained(folder)
