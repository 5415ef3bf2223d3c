"""A loaded checkpoint: the decoder and the head that are taken out of a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from headway.cluster import Adapter
from services.worker.engine.cpu.linear import Linear
from services.worker.engine.kv.pool import DTYPES, KvShape
from services.worker.engine.layout import PassLayout
from services.worker.engine.model.decoder import Decoder
from services.worker.engine.model.decoders import decoder_class, deterministic_class
from services.worker.engine.model.supported import (
    longest,
    unsupported,
)
from services.worker.engine.model.tensor_parallel import share_of_heads, whole
from services.worker.engine.options import Kernels

if TYPE_CHECKING:
    from services.worker.engine.model.network_decoder import NetworkDecoder


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A checkpoint on its device."""

    decoder: Decoder | NetworkDecoder
    lm_head: Callable[[torch.Tensor], torch.Tensor]
    """Hidden states (rows, hidden size) to logits (rows, vocabulary)."""
    kv_shape: KvShape
    vocab_size: int
    max_model_len: int
    """The model's context, or its attention window where that is less: within the window
    sliding attention is full attention."""
    eos_token_ids: tuple[int, ...]
    adapters: tuple[Adapter, ...] = ()

    def compute(self, layout: PassLayout) -> torch.Tensor:
        """Return the hidden states (rows, hidden size) of a pass."""
        self.decoder.adapter_rows.by_adapter = layout.adapted
        return self.decoder(layout.token_ids, layout.positions, layout.batch)


def kv_shape_of(network: Any) -> KvShape:
    """Return the shape of one token's KV, of this process's share of the heads."""
    config = network.config
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    dtype = str(network.dtype).removeprefix("torch.")
    return KvShape(config.num_hidden_layers, share_of_heads(config)[1], size, dtype)


def take_model(
    network: Any,
    eos_token_ids: tuple[int, ...],
    kernels: Kernels = "auto",
    *,
    is_deterministic: bool = False,
) -> LoadedModel:
    """Take the weights out of a network, which is of no use afterwards.

    It is a model of transformers, or a ``PlainNetwork``.
    """
    config, kv_shape = network.config, kv_shape_of(network)
    choose = deterministic_class if is_deterministic else decoder_class
    make_decoder = choose(kernels, network.dtype, network.device)
    lm_head = Linear(whole(network.get_output_embeddings().weight.data))
    is_half = network.dtype is not torch.float32
    if make_decoder.is_deterministic or (make_decoder.multiplies_few_rows and is_half):
        lm_head.take_all_rows(is_wide=is_half)  # logits in float32
    return LoadedModel(
        lm_head=lm_head,
        decoder=make_decoder(network, config, longest(config)),
        kv_shape=kv_shape,
        vocab_size=config.vocab_size,
        max_model_len=longest(config),
        eos_token_ids=eos_token_ids,
    )


def dtype_name(config: Any, asked: str) -> str:
    """Return the dtype to serve in, a key of ``DTYPES``; HeadwayError for another."""
    if asked == "auto":
        asked = str(config.dtype or torch.float32).removeprefix("torch.")
    if asked not in DTYPES:
        raise unsupported(f"dtype {asked!r} is not one of {', '.join(DTYPES)}: pass one of them")
    return asked


def token_ids(value: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return what a config names as one id, several or none."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
