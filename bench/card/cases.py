"""The measured passes, and the least time that any engine can take for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama model's sizes; ``itemsize`` is a weight's bytes."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int
    itemsize: int = 2

    @property
    def layer_weights(self) -> int:
        """Return the weights of one layer's products."""
        heads = self.num_heads + 2 * self.num_kv_heads
        attention = self.hidden_size * self.head_dim * (heads + self.num_heads)
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def kv_bytes_per_token(self) -> int:
        """Return the bytes of one token's keys and values in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.itemsize

    def config(self) -> Any:
        """Return transformers' configuration."""
        from transformers import LlamaConfig

        return LlamaConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            max_position_embeddings=self.max_model_len,
            rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )


@dataclass(frozen=True, slots=True)
class Case:
    """A pass: ``num_decodes`` requests at ``context`` tokens and ``num_rows`` of a prompt.

    The prompt's rows follow ``start`` tokens that were computed before.
    """

    num_decodes: int = 0
    context: int = 0
    num_rows: int = 0
    start: int = 0

    @property
    def kind(self) -> str:
        """Return ``decode``, ``prefill`` or ``mixed``."""
        if not self.num_rows:
            return "decode"
        return "mixed" if self.num_decodes else "prefill"

    @property
    def num_tokens(self) -> int:
        """Return the number of rows."""
        return self.num_decodes + self.num_rows

    def num_blocks(self, block_size: int) -> int:
        """Return the KV blocks that the pass's requests hold."""
        decodes = self.num_decodes * -(-self.context // block_size)
        return decodes + -(-(self.start + self.num_rows) // block_size)


SHAPES = {
    "llama-8b": Shape(32, 4096, 14336, 32, 8, 128, 128256, 131072),
    "tiny": Shape(2, 64, 96, 4, 2, 16, 97, 512, itemsize=4),
}
CASES = {
    "llama-8b": (
        *(Case(num, context) for context in (1024, 8192) for num in (1, 16, 64, 256)),
        *(Case(num_rows=num) for num in (512, 2048, 8192)),
        Case(num_rows=2048, start=6144),
        Case(64, 1024, 512, 1024),
        Case(64, 1024, 2048, 0),
    ),
    "tiny": (Case(1, 16), Case(2, 40), Case(num_rows=24), Case(2, 24, 16, 16)),
}


def num_bytes(shape: Shape, case: Case) -> int:
    """Return the least memory traffic: weights once, contexts once, fresh KV once."""
    weights = shape.num_layers * shape.layer_weights + shape.vocab_size * shape.hidden_size
    read = case.num_decodes * case.context + case.start + case.num_rows
    kv = (read + case.num_tokens) * shape.kv_bytes_per_token
    return weights * shape.itemsize + kv


def num_flops(shape: Shape, case: Case) -> int:
    """Count operations: weights by row, the head by drawn row, causal attention."""
    num_drawn = case.num_decodes + bool(case.num_rows)
    weights = shape.num_layers * shape.layer_weights * case.num_tokens
    head = shape.vocab_size * shape.hidden_size * num_drawn
    pairs = case.num_decodes * case.context
    pairs += case.num_rows * case.start + case.num_rows * (case.num_rows + 1) // 2
    attention = 2 * shape.num_layers * shape.num_heads * shape.head_dim * pairs
    return 2 * (weights + head + attention)


def least_seconds(shape: Shape, case: Case, bytes_per_s: float, flops_per_s: float) -> float:
    """Return the seconds that the busier of memory and arithmetic needs."""
    return max(num_bytes(shape, case) / bytes_per_s, num_flops(shape, case) / flops_per_s)


def row(
    case: Case,
    least: float,
    ours: float | None,
    peer: float | None,
    why_not: str | None = None,
    why_no_peer: str | None = None,
) -> dict[str, object]:
    """Return a line of the report; a missing figure is None, with the reason beside it."""
    return {
        "kind": case.kind,
        "num_decodes": case.num_decodes,
        "context_tokens": case.context,
        "prompt_rows": case.num_rows,
        "prompt_start": case.start,
        "seconds": ours,
        "tokens_per_s": None if ours is None else case.num_tokens / ours,
        "roofline_seconds": least,
        "roofline_share": None if ours is None else least / ours,
        "peer_seconds": peer,
        "times_as_fast_as_peer": None if ours is None or peer is None else peer / ours,
        "not_measured": why_not,
        "peer_not_measured": why_no_peer,
    }
