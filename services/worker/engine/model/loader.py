"""Loads a checkpoint, or says by name what about it is not supported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, cast

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.utils import logging as transformers_logging

from headway.errors import Code, HeadwayError
from services.worker.engine.cpu.linear import Linear
from services.worker.engine.cpu.screened_head import ScreenedHead
from services.worker.engine.kv.pool import DTYPES, KvShape
from services.worker.engine.model.attention import ATTENTION_NAME
from services.worker.engine.model.decoder import Decoder
from services.worker.engine.model.decoders import Kernels, decoder_class
from services.worker.engine.model.network_decoder import NetworkDecoder
from services.worker.engine.model.quantization import quantization_config
from services.worker.engine.model.supported import (
    longest,
    refuse_length,
    refuse_unsupported,
    unsupported,
)
from services.worker.engine.model.tensor_parallel import group_size, share_of_heads, whole


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A checkpoint on its device.

    ``max_model_len`` is the model's context, or its attention window where that is less:
    within the window sliding attention is full attention. ``screen`` finds greatest logits sooner
    than by ``lm_head``, where it is for this one.
    """

    decoder: Decoder | NetworkDecoder
    lm_head: Callable[[torch.Tensor], torch.Tensor]
    kv_shape: KvShape
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    screen: ScreenedHead | None = None


def load_model(
    model: str,
    device: torch.device,
    dtype: str,
    kernels: Kernels = "auto",
    quantization: str = "",
    max_model_len: int | None = None,
    screens: bool = True,
) -> LoadedModel:
    """Load from a folder or a hub id; ``dtype`` as in the checkpoint with ``auto``.

    ``kernels``: see ``decoder_class``. ``quantization`` is a scheme's name, or none.
    ``max_model_len``: what requests may reach, 0 for the model's own; without it nobody asks for
    more than the model can. ``screens``: see ``ScreenedHead``. Raises HeadwayError: NOT_FOUND for
    what is no checkpoint, FAILED_PRECONDITION for an unsupported one, with the way out.
    """
    config = _read_config(model)
    refuse_unsupported(config.to_dict())
    if max_model_len is not None:
        refuse_length(config, max_model_len)
    if quantization and kernels not in ("auto", "torch"):
        message = f"quantised weights have no {kernels!r} kernels: leave kernels at 'auto'"
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="kernels")
    how = _placement(config, device, quantization)
    chosen = _dtype_name(config, dtype)
    cast(Any, transformers_logging).disable_progress_bar()
    network, info = cast(Any, AutoModelForCausalLM).from_pretrained(
        model,
        config=config,
        dtype=DTYPES[chosen],
        attn_implementation=ATTENTION_NAME,
        output_loading_info=True,
        **how,
    )
    if info["missing_keys"]:
        raise unsupported(f"it lacks weights: {', '.join(sorted(info['missing_keys'])[:3])}")
    eos_token_ids = _eos_token_ids(model, config, network.generation_config)
    if quantization:
        return as_it_is(network.eval(), eos_token_ids)
    return take_model(network.to(device).eval(), eos_token_ids, kernels, screens)


def _placement(config: Any, device: torch.device, quantization: str) -> dict[str, Any]:
    """Further arguments of ``from_pretrained``: shares of a group, or fewer bits."""
    size = group_size()
    if (size > 1 or quantization) and find_spec("accelerate") is None:
        message = "transformers places these weights with accelerate: pip install accelerate"
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="model")
    if size > 1 and quantization:
        message = "quantised weights are not shared out over processes: take one of the two"
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="quantization")
    if size > 1:
        share_of_heads(config)
        plan = DistributedConfig(tp_plan="auto", tp_size=size)
        return {"distributed_config": plan}
    scheme = quantization_config(quantization)
    return {} if scheme is None else {"quantization_config": scheme, "device_map": str(device)}


def as_it_is(network: Any, eos_token_ids: tuple[int, ...]) -> LoadedModel:
    """transformers' modules go on multiplying: their weights are not plain matrices."""
    return LoadedModel(
        decoder=NetworkDecoder(network),
        lm_head=network.get_output_embeddings(),
        kv_shape=_kv_shape(network),
        vocab_size=network.config.vocab_size,
        max_model_len=longest(network.config),
        eos_token_ids=eos_token_ids,
    )


def _kv_shape(network: Any) -> KvShape:
    """Of this process's share of the heads."""
    config = network.config
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    dtype = str(network.dtype).removeprefix("torch.")
    return KvShape(config.num_hidden_layers, share_of_heads(config)[1], size, dtype)


def take_model(
    network: Any, eos_token_ids: tuple[int, ...], kernels: Kernels = "auto", screens: bool = True
) -> LoadedModel:
    """Take the weights out of a transformers model, which is of no use afterwards."""
    config, kv_shape = network.config, _kv_shape(network)
    screen = _screen(network) if screens and group_size() == 1 else None
    make_decoder = decoder_class(kernels, network.dtype, network.device)
    lm_head = Linear(whole(network.get_output_embeddings().weight.data))
    if make_decoder.multiplies_few_rows:
        lm_head.take_few_rows()
    return LoadedModel(
        lm_head=lm_head,
        decoder=make_decoder(network, config, longest(config)),
        kv_shape=kv_shape,
        vocab_size=config.vocab_size,
        max_model_len=longest(config),
        eos_token_ids=eos_token_ids,
        screen=screen,
    )


def _screen(network: Any) -> ScreenedHead | None:
    """Of a head whose weights stay as they are, because they are the embedding's, too."""
    weight: torch.Tensor = network.get_output_embeddings().weight.data
    is_shared = (
        weight is not None and weight.data_ptr() == network.model.embed_tokens.weight.data_ptr()
    )
    return ScreenedHead(weight) if is_shared and ScreenedHead.serves(weight) else None


def checkpoint_dtype(model: str) -> str:
    """The dtype that a checkpoint is served in unless told otherwise, a key of ``DTYPES``."""
    return _dtype_name(_read_config(model), "auto")


def _read_config(model: str) -> Any:
    try:
        return AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        message = f"{model!r} is neither a folder nor a hub id with a known checkpoint: {error}"
        raise HeadwayError(Code.NOT_FOUND, message, param="model") from error


def _dtype_name(config: Any, asked: str) -> str:
    if asked == "auto":
        asked = str(config.dtype or torch.float32).removeprefix("torch.")
    if asked not in DTYPES:
        raise unsupported(f"dtype {asked!r} is not one of {', '.join(DTYPES)}: pass one of them")
    return asked


def _eos_token_ids(model: str, config: Any, generation_config: Any) -> tuple[int, ...]:
    """What ``generate`` would stop at; the tokenizer's word where the checkpoint has none."""
    for source in (generation_config, config):
        ids = _ids(getattr(source, "eos_token_id", None))
        if ids:
            return ids
    try:
        return _ids(AutoTokenizer.from_pretrained(model).eos_token_id)
    except (OSError, ValueError):
        return ()


def _ids(value: int | Sequence[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
