"""The decoder with compiled kernels between its matrix products, on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import embedding

from services.worker.engine.attention import PagedBatch, Reads, attend_prefills
from services.worker.engine.decoder import Decoder, LayerWeights
from services.worker.engine.native.operators import Operators


class NativeDecoder(Decoder):
    """Needs batches whose decode rows have ``contexts``; prompts attend as the decoder's do."""

    reads = Reads.DECODES_BY_TABLE

    def __init__(self, network: Any, config: Any, max_model_len: int) -> None:
        """Takes the weights out of a transformers model, which is of no use afterwards."""
        super().__init__(network, config, max_model_len)
        self._eps = float(config.rms_norm_eps)
        self._operators = Operators(self._embedding.dtype)

    def __call__(
        self, token_ids: torch.Tensor, positions: torch.Tensor, batch: PagedBatch
    ) -> torch.Tensor:
        """As the decoder's."""
        hidden = embedding(token_ids, self._embedding)
        for index, layer in enumerate(self._layers):
            hidden = self._attend(index, layer, hidden, positions, batch)
            hidden = self._mlp(layer, hidden)
        return self._normed(hidden, self._norm)

    def _normed(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._operators.rms_norm(rows, weight, self._eps)

    def _gated(self, layer: LayerWeights, rows: torch.Tensor) -> torch.Tensor:
        if layer.gated.is_packed:
            return layer.gated(rows)
        return self._operators.silu_mul(layer.gated.joined(rows))

    def _attend(
        self,
        index: int,
        layer: LayerWeights,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        batch: PagedBatch,
    ) -> torch.Tensor:
        keys, values = batch.pool.keys[index], batch.pool.values[index]
        qkv = layer.qkv(self._normed(hidden, layer.input_norm))
        self._operators.rope_store(
            *(qkv, self._cos, self._sin, positions, batch.slots, keys, values),
            num_heads=self._num_heads,
            norms=None if layer.qk_norm is None else (layer.qk_norm[0], layer.qk_norm[-1]),
            eps=self._eps,
        )
        output = qkv.new_empty(len(qkv), self._num_heads * self._size)
        if batch.contexts is not None:
            self._operators.decode_attention(
                *(qkv, keys, values, batch.contexts.tables, batch.contexts.lengths, output),
                num_heads=self._num_heads,
                block_size=batch.pool.block_size,
                scale=self._scale,
            )
        if batch.prefills:
            parts = attend_prefills(index, *self._heads(qkv), batch, self._scale)
            for span, part in zip(batch.prefills, parts, strict=True):
                output[span.first : span.stop] = part
        return layer.output.added_to(hidden, output)

    def _heads(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values (rows, heads, size)."""
        heads = qkv.view(len(qkv), -1, self._size)
        first, second = self._num_heads, self._num_heads + self._num_kv_heads
        return heads[:, :first], heads[:, first:second], heads[:, second:]
