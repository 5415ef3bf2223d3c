"""Loading by transformers: of checkpoints that are not plain (``plain``), and of fewer bits."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, cast

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.utils import logging as transformers_logging

from headway.errors import Code, HeadwayError
from services.worker.engine.kv.pool import DTYPES
from services.worker.engine.model.decoders import undetermined
from services.worker.engine.model.loaded import (
    LoadedModel,
    dtype_name,
    kv_shape_of,
    take_model,
    token_ids,
)
from services.worker.engine.model.network_decoder import (
    ATTENTION_NAME,
    NetworkDecoder,
    NetworkHead,
)
from services.worker.engine.model.probe import own_logits, refuse_other_logits
from services.worker.engine.model.quantization import quantization_config
from services.worker.engine.model.supported import (
    PACKED,
    SCALED,
    is_packed,
    longest,
    refuse_length,
    refuse_unsupported,
    unsupported,
)
from services.worker.engine.model.tensor_parallel import group_size, share_of_heads
from services.worker.engine.options import EngineOptions


def load_model(model: str, device: torch.device, options: EngineOptions) -> LoadedModel:
    """Load any checkpoint; see ``loader``."""
    config = _read_config(model)
    fields = config.to_dict()
    refuse_unsupported(fields)
    if options.max_model_len is not None:
        refuse_length(config, options.max_model_len)
    if fields.get("quantization_config") is not None:
        _take_plain_weights(config, options.quantization)
    packs = is_packed(fields) and not options.quantization
    _refuse_what_modules_lack(packs, config, options)
    how = _placement(config, device, options.quantization)
    network = _read_network(model, config, dtype_name(config, options.dtype), how).eval()
    eos_token_ids = _eos_token_ids(model, config, network.generation_config)
    if not options.quantization:
        network.to(device)
    if packs:
        return take_model(
            network, eos_token_ids, options.kernels, is_deterministic=options.deterministic
        )
    return as_it_is(network, eos_token_ids)


def _refuse_what_modules_lack(packs: bool, config: Any, options: EngineOptions) -> None:
    if options.deterministic:
        _refuse_undetermined(packs, config, options)
    if packs:
        return
    kind = "quantised weights have" if options.quantization else f"{config.model_type!r} has"
    if options.kernels not in ("auto", "torch"):
        message = f"{kind} no {options.kernels!r} kernels: leave kernels at 'auto'"
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="kernels")
    if group_size() > 1:
        message = f"{kind} no shares for several processes: start one process"
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="nproc-per-node")


def _refuse_undetermined(packs: bool, config: Any, options: EngineOptions) -> None:
    if options.quantization:
        raise undetermined("quantised weights run in transformers' modules: leave quantization out")
    if not packs:
        why = f"{config.model_type!r} runs in transformers' modules"
        raise undetermined(f"{why}; it is for {', '.join(PACKED)}")
    if group_size() > 1:
        raise undetermined("several processes add up shares: start one process")


def _read_config(model: str) -> Any:
    try:
        return AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        message = f"{model!r} is neither a folder nor a hub id with a known checkpoint: {error}"
        raise HeadwayError(Code.NOT_FOUND, message, param="model") from error
    except Exception as error:  # whatever fields of other types do to it
        raise unsupported(f"its config.json is damaged: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _take_plain_weights(config: Any, quantization: str) -> None:
    """Let transformers multiply a checkpoint's weights by their scales while it reads them."""
    if quantization:
        message = f"quantization is {quantization!r}; the checkpoint's weights are quantised: none"
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="quantization")
    method = config.quantization_config["quant_method"]
    if find_spec(SCALED[method]) is None:
        library = SCALED[method].replace("_", "-")
        message = f"the checkpoint's weights are quantised by {method!r}: pip install {library}"
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="model")
    config.quantization_config = {**config.quantization_config, "dequantize": True}


def _read_network(model: str, config: Any, dtype: str, how: Mapping[str, Any]) -> Any:
    cast(Any, transformers_logging).disable_progress_bar()
    try:
        network, info = cast(Any, AutoModelForCausalLM).from_pretrained(
            model,
            config=config,
            dtype=DTYPES[dtype],
            attn_implementation=ATTENTION_NAME,
            output_loading_info=True,
            **how,
        )
    except Exception as error:  # whatever a damaged file does to it
        raise unsupported(f"transformers does not serve it: {_first_line(error)}") from error
    if info["missing_keys"]:
        raise unsupported(f"it lacks weights: {', '.join(sorted(info['missing_keys'])[:3])}")
    return network


def _placement(config: Any, device: torch.device, quantization: str) -> dict[str, Any]:
    """Return further arguments of ``from_pretrained``: shares of a group, or fewer bits."""
    size = group_size()
    if (size > 1 or quantization) and find_spec("accelerate") is None:
        message = "transformers places these weights with accelerate: pip install accelerate"
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="model")
    if size > 1:
        share_of_heads(config)
        plan = DistributedConfig(tp_plan="auto", tp_size=size)
        return {"distributed_config": plan}
    scheme = quantization_config(quantization)
    return {} if scheme is None else {"quantization_config": scheme, "device_map": str(device)}


def as_it_is(network: Any, eos_token_ids: tuple[int, ...]) -> LoadedModel:
    """Keep transformers' modules, for weights or families that only they can compute.

    Raises HeadwayError where the family's arithmetic does not go with paged KV.
    """
    config = network.config
    try:
        expected = None if is_packed(config.to_dict()) else own_logits(network)
        kv_shape = kv_shape_of(network)
        decoder, head = NetworkDecoder(network.get_decoder()), NetworkHead(network)
        if expected is not None:
            refuse_other_logits(expected, decoder, head, kv_shape)
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        reason = f"its modules do not run over paged KV ({error})"
        raise unsupported(f"its model_type is {config.model_type!r}: {reason}") from error
    return LoadedModel(
        decoder=decoder,
        lm_head=head,
        kv_shape=kv_shape,
        vocab_size=config.vocab_size,
        max_model_len=longest(config),
        eos_token_ids=eos_token_ids,
    )


def _eos_token_ids(model: str, config: Any, generation_config: Any) -> tuple[int, ...]:
    """Return the tokens that ``generate`` stops at, else the tokenizer's end of sequence."""
    for source in (generation_config, config):
        ids = token_ids(getattr(source, "eos_token_id", None))
        if ids:
            return ids
    try:
        return token_ids(AutoTokenizer.from_pretrained(model).eos_token_id)
    except (OSError, ValueError):
        return ()


def checkpoint_dtype(model: str) -> str:
    """Return the dtype that a checkpoint is served in by default, a key of ``DTYPES``."""
    return dtype_name(_read_config(model), "auto")
