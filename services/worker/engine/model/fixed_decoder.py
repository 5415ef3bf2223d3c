"""The decoder whose result for a row depends on that row's own context alone, on a CPU."""

from __future__ import annotations

from services.worker.engine.attention import Reads
from services.worker.engine.model.decoder import LayerWeights
from services.worker.engine.model.native_decoder import NativeDecoder


class FixedDecoder(NativeDecoder):
    """A batch-invariant pass: neither other requests, nor chunks, nor cached KV change a bit.

    Every product is one sum in one order (``Linear.take_all_rows``). Every row of a prompt attends
    by itself, as a decoding row does. Norms and gates are computed row by row anyway.
    """

    kernels = "deterministic"
    is_deterministic = True
    reads = Reads.ROWS_BY_TABLE

    def _take_kernels(self, layer: LayerWeights) -> None:
        for each in (layer.qkv, layer.output, layer.gated, layer.down):
            each.take_all_rows()
