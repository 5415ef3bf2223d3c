"""The decoder with compiled kernels between its matrix products, on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import embedding

from services.worker.engine.attention import PagedBatch, Reads, attend_prefills
from services.worker.engine.cpu.operators import (
    AttentionLayer,
    AttentionRows,
    AttentionShape,
    greatest,
    operators_for,
)
from services.worker.engine.kv.pool import KvPool
from services.worker.engine.model.decoder import Decoder, LayerWeights


class NativeDecoder(Decoder):
    """A decoder for batches whose decode rows have ``contexts``."""

    kernels = "native"
    multiplies_few_rows = True
    greatest = staticmethod(greatest)
    reads = Reads.DECODES_BY_TABLE

    def __init__(self, network: Any, config: Any, max_model_len: int) -> None:
        """Take the weights out of a transformers model, which is of no use afterwards."""
        super().__init__(network, config, max_model_len)
        self._eps = float(config.rms_norm_eps)
        compiled = operators_for(self._embedding.dtype, self._embedding.device)
        assert compiled is not None, "decoder_class chose this one without kernels"
        self._operators = compiled
        self._paged: _PagedLayers | None = None
        for layer in self._layers:
            self._take_kernels(layer)

    def _take_kernels(self, layer: LayerWeights) -> None:
        for each in (layer.qkv, layer.output, layer.gated, layer.down):
            each.take_few_rows()

    def __call__(
        self, token_ids: torch.Tensor, positions: torch.Tensor, batch: PagedBatch
    ) -> torch.Tensor:
        """See ``Decoder``."""
        hidden = embedding(token_ids, self._embedding)
        angles = self._cos, self._sin, positions
        rows = AttentionRows.of(
            *angles, batch.slots, batch.contexts, parts_are_fixed=self.is_deterministic
        )
        output = hidden.new_empty(len(hidden), self._num_heads * self._size)
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(self._normed(hidden, layer.input_norm))
            self._attend(index, rows, qkv, batch, output)
            hidden = self._mlp(layer, layer.output.added_to(hidden, output))
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
        rows: AttentionRows,
        qkv: torch.Tensor,
        batch: PagedBatch,
        output: torch.Tensor,
    ) -> None:
        """Attend into ``output``, which held the output of the layer before."""
        paged = self._paged_in(batch.pool)
        self._operators.store_and_attend(paged.shape, paged.layers[index], rows, qkv, output)
        if batch.prefills:
            heads = qkv.view(len(qkv), -1, self._size)
            first, second = self._num_heads, self._num_heads + self._num_kv_heads
            fresh = heads[:, :first], heads[:, first:second], heads[:, second:]
            parts = attend_prefills(index, *fresh, batch, self._scale)
            for span, part in zip(batch.prefills, parts, strict=True):
                output[span.first : span.stop] = part

    def _paged_in(self, pool: KvPool) -> _PagedLayers:
        if self._paged is None or self._paged.pool is not pool:
            shape = (self._num_heads, self._num_kv_heads, self._size, pool.block_size)
            norms = [layer.head_norms or (None, None) for layer in self._layers]
            self._paged = _PagedLayers(pool, AttentionShape(*shape, self._scale, self._eps), norms)
        return self._paged


class _PagedLayers:
    """Pointers to each layer's norms, keys and values, for the kernels."""

    def __init__(
        self,
        pool: KvPool,
        shape: AttentionShape,
        norms: list[tuple[torch.Tensor, torch.Tensor] | tuple[None, None]],
    ) -> None:
        self.pool = pool
        self.shape = shape
        planes = zip(norms, pool.keys, pool.values, strict=True)
        self.layers = [AttentionLayer(*pair, keys, values) for pair, keys, values in planes]
