"""The decoder with Triton's kernels between its matrix products; decode passes from graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import embedding

from services.worker.engine.attention import Contexts, PagedBatch, Reads
from services.worker.engine.gpu.cuda_graphs import (
    CudaRecorder,
    DecodeBatch,
    DecodeGraphs,
    Record,
    bucket_sizes,
)
from services.worker.engine.gpu.decode import decode_attention
from services.worker.engine.gpu.mlp import silu_mul
from services.worker.engine.gpu.norm import add_rms_norm, rms_norm
from services.worker.engine.gpu.plan import DecodePlan, plan_decode
from services.worker.engine.gpu.prefill import prefill_attention
from services.worker.engine.gpu.store import rope_store
from services.worker.engine.kv.pool import KvPool
from services.worker.engine.model.decoder import Decoder

RECORDED_SIZES = bucket_sizes(512)
INTERPRETED_PROCESSORS = 4


class KernelDecoder(Decoder):
    """A decoder for batches with ``contexts``."""

    kernels = "triton"
    reads = Reads.TABLES

    def __init__(self, network: Any, config: Any, max_model_len: int) -> None:
        """Take the weights out of a transformers model, which is of no use afterwards."""
        super().__init__(network, config, max_model_len)
        self._eps = float(config.rms_norm_eps)
        self._graphs: DecodeGraphs | None = None

    def __call__(
        self, token_ids: torch.Tensor, positions: torch.Tensor, batch: PagedBatch
    ) -> torch.Tensor:
        """See ``Decoder``; the output of graphs is valid until the next pass."""
        contexts, num_rows = batch.contexts, len(token_ids)
        assert contexts is not None, "the batch was laid out for torch's own attention"
        rows = DecodeBatch(token_ids, positions, batch.slots, contexts.lengths, contexts.tables)
        # Triton launches on the current GPU.
        with torch.cuda.device_of(token_ids):  # type: ignore[no-untyped-call]
            is_recorded = contexts.num_decodes == num_rows and not self.adapter_rows.by_adapter
            if self._graphs and is_recorded and self._graphs.holds(num_rows):
                return self._graphs.run(rows)
            return self._compute(rows, contexts, batch.pool)

    def prepare(
        self,
        pool: KvPool,
        record: Record | None = None,
        sizes: tuple[int, ...] = RECORDED_SIZES,
    ) -> None:
        """Record decode passes over ``pool``; without ``record`` only a GPU's can be."""
        device = self._embedding.device
        if record is None and device.type != "cuda":
            return
        self._graphs = DecodeGraphs(
            lambda batch: self._compute(
                batch, Contexts(len(batch.slots), batch.tables, batch.lengths, None), pool
            ),
            sizes=sizes,
            num_columns=-(-len(self._cos) // pool.block_size),
            device=device,
            record=record or CudaRecorder(device),
        )
        self._graphs.record_all()

    def _compute(self, rows: DecodeBatch, contexts: Contexts, pool: KvPool) -> torch.Tensor:
        """Compute all rows' hidden states; ``rows`` has the contexts of prompts, too."""
        residual = embedding(rows.token_ids, self._embedding)
        half = self._size // 2
        # The sines' first half is negated.
        cos = self._cos[:, half:].index_select(0, rows.positions)
        sin = self._sin[:, half:].index_select(0, rows.positions)
        plan = self._plan(contexts)
        following = [layer.input_norm for layer in self._layers[1:]] + [self._norm]
        hidden = rms_norm(residual, self._layers[0].input_norm, self._eps)
        for index, (layer, norm) in enumerate(zip(self._layers, following, strict=True)):
            keys, values = pool.keys[index], pool.values[index]
            query = rope_store(
                layer.qkv(hidden),
                cos,
                sin,
                keys,
                values,
                rows.slots,
                num_heads=self._num_heads,
                norms=layer.head_norms,
                eps=self._eps,
            )
            attended = self._attend(query, keys, values, contexts, plan, pool.block_size)
            hidden = layer.output(attended.view(len(query), -1))
            hidden, residual = add_rms_norm(hidden, residual, layer.mlp_norm, self._eps)
            hidden = layer.down(silu_mul(layer.gated.joined(hidden)))
            hidden, residual = add_rms_norm(hidden, residual, norm, self._eps)
        return hidden

    def _plan(self, contexts: Contexts) -> DecodePlan | None:
        if not contexts.num_decodes:
            return None
        lengths = contexts.lengths[: contexts.num_decodes]
        num_processors = _num_processors(lengths.device)
        return plan_decode(lengths, self._num_heads, self._num_kv_heads, self._size, num_processors)

    def _attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        contexts: Contexts,
        plan: DecodePlan | None,
        block_size: int,
    ) -> torch.Tensor:
        """Attend with decodes, then prompts: (rows, heads, size)."""
        output, first = torch.empty_like(query), contexts.num_decodes
        if plan is not None:
            decode_attention(
                query[:first],
                keys,
                values,
                contexts.tables[:first],
                contexts.lengths[:first],
                plan,
                block_size=block_size,
                scale=self._scale,
                output=output[:first],
            )
        if contexts.firsts is not None:
            self._attend_prompts(
                query[first:],
                keys,
                values,
                contexts.tables[first:],
                contexts.firsts,
                contexts.lengths[first:],
                block_size=block_size,
                scale=self._scale,
                output=output[first:],
            )
        return output

    def _attend_prompts(self, *prompts: torch.Tensor, **settings: Any) -> None:
        prefill_attention(*prompts, **settings)


def _num_processors(device: torch.device) -> int:
    if device.type != "cuda":
        return INTERPRETED_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
