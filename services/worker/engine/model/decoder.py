"""The decoder of the Llama, Mistral, Qwen2 and Qwen3 families over one flattened, ragged batch.

It computes what transformers' modules compute, with fewer and larger operators. One matrix product
gives queries, keys and values; another gives the MLP's gate and up. Qwen3's norms and the rotation
are applied to queries and keys together. The rotation's angles come from a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.linalg import vector_norm
from torch.nn.functional import embedding

from services.worker.engine.attention import PagedBatch, Reads, attend
from services.worker.engine.cpu.linear import GatedLinear, Linear, Weights
from services.worker.engine.kv.pool import KvPool
from services.worker.engine.model.adapters import AdapterRows, Product
from services.worker.engine.model.tensor_parallel import (
    SummedLinear,
    group_size,
    own_share,
    share_of_heads,
    whole,
)
from services.worker.engine.sampler import greatest

_MAX_MLP_ROWS = 512


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; ``qk_norm`` is (heads + KV heads, head size), None where the family has none."""

    input_norm: torch.Tensor
    qkv: Linear
    qk_norm: torch.Tensor | None
    output: Linear
    mlp_norm: torch.Tensor
    gated: GatedLinear
    down: Linear

    @property
    def head_norms(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the norm of all query heads and that of all key heads."""
        return None if self.qk_norm is None else (self.qk_norm[0], self.qk_norm[-1])


class Decoder:
    """The layers: token ids to hidden states, with keys and values into the paged pool."""

    kernels = "torch"
    multiplies_few_rows = False  # True if it uses kernels of its own
    is_deterministic = False  # True if what is beside a row never changes it
    greatest = staticmethod(greatest)
    reads = Reads.SLOTS  # the batches it needs

    def __init__(self, network: Any, config: Any, max_model_len: int) -> None:
        """Take the weights out of a transformers model, which is of no use afterwards."""
        base = network.model
        self._num_heads, self._num_kv_heads = share_of_heads(config)
        self._size = _head_size(config)
        self._scale = self._size**-0.5
        self._rms = RmsNorm(float(config.rms_norm_eps), own_share(base.norm.weight.data))
        self._embedding: torch.Tensor = whole(base.embed_tokens.weight.data)
        self._norm: torch.Tensor = own_share(base.norm.weight.data)
        self._cos, self._sin = _angles(base.rotary_emb, max_model_len, self._embedding)
        self.adapter_rows = AdapterRows()
        self._layers: list[LayerWeights] = []
        for index, layer in enumerate(base.layers):
            self._layers.append(_take_layer(layer, self._num_heads, self._num_kv_heads))
            base.layers[index] = (
                torch.nn.Identity()
            )  # so only one layer at a time is in memory twice

    def __call__(
        self, token_ids: torch.Tensor, positions: torch.Tensor, batch: PagedBatch
    ) -> torch.Tensor:
        """Return hidden states after the final norm (rows, hidden size) of tokens (rows,)."""
        hidden = embedding(token_ids, self._embedding)
        angles = (
            self._cos.index_select(0, positions).unsqueeze(1),
            self._sin.index_select(0, positions).unsqueeze(1),
        )
        for index, layer in enumerate(self._layers):
            hidden = self._attention(index, layer, hidden, angles, batch)
            hidden = self._mlp(layer, hidden)
        return self._normed(hidden, self._norm)

    def products(self) -> Iterator[tuple[str, Product]]:
        """See ``Adapted``."""
        hidden, size = len(self._norm), self._size
        heads, kv_heads = self._num_heads * size, self._num_kv_heads * size
        for index, layer in enumerate(self._layers):
            attention, mlp = f"layers.{index}.self_attn.", f"layers.{index}.mlp."
            inner = layer.gated.num_outputs
            yield attention + "q_proj", Product(layer.qkv, 0, heads, hidden)
            yield attention + "k_proj", Product(layer.qkv, heads, kv_heads, hidden)
            yield attention + "v_proj", Product(layer.qkv, heads + kv_heads, kv_heads, hidden)
            yield attention + "o_proj", Product(layer.output, 0, hidden, heads)
            yield mlp + "gate_proj", Product(layer.gated, 0, inner, hidden)
            yield mlp + "up_proj", Product(layer.gated, inner, inner, hidden)
            yield mlp + "down_proj", Product(layer.down, 0, hidden, inner)

    def prepare(self, pool: KvPool) -> None:
        """Do nothing: there is nothing to do ahead of the first pass."""

    def _normed(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._rms(rows, weight)

    def _gated(self, layer: LayerWeights, rows: torch.Tensor) -> torch.Tensor:
        return layer.gated(rows)

    def _attention(
        self,
        index: int,
        layer: LayerWeights,
        hidden: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        batch: PagedBatch,
    ) -> torch.Tensor:
        normed = self._normed(hidden, layer.input_norm)
        heads = layer.qkv(normed).view(len(hidden), -1, self._size)
        num_rotated = self._num_heads + self._num_kv_heads
        rotated = heads[:, :num_rotated]
        if layer.qk_norm is not None:
            rotated = self._rms(rotated, layer.qk_norm)
        rotated = rotate(rotated, *angles)
        output = attend(
            index,
            rotated[:, : self._num_heads],
            rotated[:, self._num_heads :],
            heads[:, num_rotated:],
            batch,
            self._scale,
        )
        return layer.output.added_to(hidden, output)

    def _mlp(self, layer: LayerWeights, hidden: torch.Tensor) -> torch.Tensor:
        # Larger intermediates would be fresh memory from the system. Adapters count all rows.
        if len(hidden) > _MAX_MLP_ROWS and not self.adapter_rows.by_adapter:
            parts = [self._mlp(layer, part) for part in torch.split(hidden, _MAX_MLP_ROWS)]
            return torch.cat(parts)
        gated = self._gated(layer, self._normed(hidden, layer.mlp_norm))
        return layer.down.added_to(hidden, gated)


class RmsNorm:
    """``x / sqrt(mean(x²) + eps) · weight`` over the last dimension."""

    def __init__(self, eps: float, like: torch.Tensor) -> None:
        self._eps = eps
        self._eps_tensor = torch.tensor(eps, device=like.device)

    def __call__(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Normalise ``rows`` (…, size); ``weight`` is (size,), or (heads, size) by head."""
        if rows.dtype is not torch.float32:  # the mean and the root in float32
            if weight.dim() == 1:
                return torch.rms_norm(rows, weight.shape, weight, self._eps)
            return torch.rms_norm(rows, weight.shape[-1:], None, self._eps).mul_(weight)
        length = vector_norm(rows, dim=-1, keepdim=True)
        mean = torch.addcmul(self._eps_tensor, length, length, value=1 / rows.shape[-1])
        return (rows * torch.rsqrt(mean)).mul_(weight)


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate heads (rows, heads, size); the first half of ``sin`` is negated already."""
    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, -1), sin)


def _head_size(config: Any) -> int:
    own = getattr(config, "head_dim", None)
    return int(own or config.hidden_size // config.num_attention_heads)


def _angles(
    rotary: Any, max_model_len: int, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines by position (positions, size), in the model's dtype."""
    positions = torch.arange(max_model_len, device=like.device).unsqueeze(0)
    with torch.inference_mode():
        cos, sin = rotary(like[:1].unsqueeze(0), positions)
    sign = torch.ones_like(sin)
    sign[..., : sin.shape[-1] // 2] = -1
    return cos[0].contiguous(), (sin * sign)[0].contiguous()


def _take_layer(layer: Any, num_heads: int, num_kv_heads: int) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    qk_norm = None
    if hasattr(attention, "q_norm"):
        query, key = (own_share(norm.weight.data) for norm in (attention.q_norm, attention.k_norm))
        qk_norm = torch.cat([query.expand(num_heads, -1), key.expand(num_kv_heads, -1)])
    return LayerWeights(
        input_norm=own_share(layer.input_layernorm.weight.data),
        qkv=_joined(attention.q_proj, attention.k_proj, attention.v_proj),
        qk_norm=qk_norm,
        output=_summed(attention.o_proj),
        mlp_norm=own_share(layer.post_attention_layernorm.weight.data),
        gated=GatedLinear(_weights(mlp.gate_proj), _weights(mlp.up_proj)),
        down=_summed(mlp.down_proj),
    )


def _joined(*modules: Any) -> Linear:
    """Join several products of the same rows into one."""
    weights, biases = zip(*(_weights(module) for module in modules), strict=True)
    return Linear(torch.cat(weights), None if biases[0] is None else torch.cat(biases))


def _weights(module: Any) -> Weights:
    """Return this process's share of a matrix and of its bias."""
    bias = None if module.bias is None else own_share(module.bias.data)
    return own_share(module.weight.data), bias


def _summed(module: Any) -> Linear:
    """Return a product over this process's share of the inputs; the bias is whole."""
    kind = SummedLinear if group_size() > 1 else Linear
    bias = None if module.bias is None else whole(module.bias.data)
    return kind(own_share(module.weight.data), bias)
