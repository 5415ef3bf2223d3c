"""The model's forward pass for training: transformers' own, compiled, in fewer and wider steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from transformers import Qwen3ForCausalLM

_SHORT = 192  # rows up to this long multiply their scores out: faster than blocks of them
Tensors = tuple[torch.Tensor, ...]


def _norm(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def _turned(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = heads.chunk(2, -1)
    return (heads * cos + torch.cat((-second, first), -1) * sin).bfloat16()


def _layer(
    hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, weights: Tensors, groups: int
) -> torch.Tensor:
    """Run one layer on ``hidden`` (rows, width, channels)."""
    before, of_queries, of_keys, joined, out, after, widened, narrowed = weights
    rows, width, _ = hidden.shape
    size = of_queries.numel()
    wide = joined.shape[0] // size // (groups + 2) * size
    x = functional.linear(_norm(hidden, before).bfloat16(), joined.bfloat16())
    split = [
        each.view(rows, width, -1, size) for each in torch.split(x, [groups * wide, wide, wide], -1)
    ]
    queries = _turned(_norm(split[0].float(), of_queries).transpose(1, 2), cos, sin)
    keys = _turned(_norm(split[1].float(), of_keys).transpose(1, 2), cos, sin)
    keys = keys.repeat_interleave(groups, 1)
    values = split[2].transpose(1, 2).repeat_interleave(groups, 1)
    if width <= _SHORT:
        later = torch.ones(width, width, dtype=torch.bool).triu(1)
        scores = (queries @ keys.transpose(-1, -2)).float() * size**-0.5
        seen = scores.masked_fill(later, -1e9).softmax(-1).bfloat16() @ values
    else:
        seen = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    seen = seen.transpose(1, 2).reshape(rows, width, -1)
    hidden = hidden + functional.linear(seen, out.bfloat16()).float()
    gate, up = functional.linear(_norm(hidden, after).bfloat16(), widened.bfloat16()).chunk(2, -1)
    return hidden + functional.linear(functional.silu(gate) * up, narrowed.bfloat16()).float()


def compiled() -> Callable[..., torch.Tensor]:
    """Compile a layer; shapes of later batches need no compiling of their own."""
    made: Callable[..., torch.Tensor] = torch.compile(_layer, dynamic=True)
    return made


def last_hidden(
    model: Qwen3ForCausalLM, layer: Callable[..., Any], ids: torch.Tensor, places: torch.Tensor
) -> torch.Tensor:
    """Return the last hidden states (rows, width, channels) of ids at these positions."""
    inner, config = model.model, model.config
    hidden = functional.embedding(ids, inner.embed_tokens.weight)
    base = float(config.to_dict()["rope_parameters"]["rope_theta"])
    half = torch.arange(0, config.head_dim, 2) / config.head_dim
    angles = places[:, None, :, None] * base**-half
    angles = torch.cat((angles, angles), -1)
    cos, sin = angles.cos(), angles.sin()
    for each in inner.layers:
        attention, mlp = each.self_attn, each.mlp
        weights = (
            each.input_layernorm.weight,
            attention.q_norm.weight,
            attention.k_norm.weight,
            torch.cat((attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight)),
            attention.o_proj.weight,
            each.post_attention_layernorm.weight,
            torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)),
            mlp.down_proj.weight,
        )
        hidden = layer(hidden, cos, sin, weights, attention.num_key_value_groups)
    return _norm(hidden, inner.norm.weight)
