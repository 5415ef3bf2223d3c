"""transformers' own modules as the decoder, for weights that only they can multiply."""

from __future__ import annotations

from typing import Any

import torch

from services.worker.engine.kv.pool import KvPool
from services.worker.engine.model.attention import PagedBatch, Reads
from services.worker.engine.sampler import greatest


class NetworkDecoder:
    """What :class:`Decoder` does, operator by operator as the model's authors wrote it."""

    kernels = "modules"
    greatest = staticmethod(greatest)
    reads = Reads.SLOTS

    def __init__(self, network: Any) -> None:
        self._modules = network.get_decoder()

    def __call__(
        self, token_ids: torch.Tensor, positions: torch.Tensor, batch: PagedBatch
    ) -> torch.Tensor:
        """Hidden states after the final norm (rows, hidden size) of ``token_ids`` (rows,)."""
        output = self._modules(
            input_ids=token_ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            headway_batch=batch,
        )
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    def prepare(self, pool: KvPool) -> None:
        """Do ahead what passes over ``pool`` would otherwise do first: here nothing."""
