"""Loading of checkpoints; an unsupported one is refused with the reason."""

from __future__ import annotations

from dataclasses import replace

import torch

from headway.errors import Code, HeadwayError
from services.worker.engine.kv.pool import DTYPES
from services.worker.engine.model.adapters import put_adapters
from services.worker.engine.model.loaded import LoadedModel, dtype_name, take_model, token_ids
from services.worker.engine.model.plain import read_config, read_network
from services.worker.engine.model.supported import refuse_length, refuse_unsupported
from services.worker.engine.model.tensor_parallel import group_size
from services.worker.engine.options import EngineOptions


def load_model(model: str, device: torch.device, options: EngineOptions) -> LoadedModel:
    """Load a checkpoint from a folder or a hub id.

    Raises HeadwayError: NOT_FOUND if there is no checkpoint, FAILED_PRECONDITION with the way
    out if it is not supported.
    """
    _refuse_what_adapters_lack(options)
    loaded = None
    if group_size() == 1 and not options.quantization:
        loaded = _load_plain(model, device, options)
    if loaded is None:
        from services.worker.engine.model import by_transformers  # its import takes seconds

        loaded = by_transformers.load_model(model, device, options)
    dtype = DTYPES[loaded.kv_shape.dtype]
    return replace(loaded, adapters=put_adapters(loaded.decoder, options.lora, dtype, device))


def _refuse_what_adapters_lack(options: EngineOptions) -> None:
    if not options.lora:
        return
    for is_wrong, why in (
        (options.deterministic, "a deterministic pass has no adapters: leave deterministic out"),
        (group_size() > 1, "several processes share no adapters: start one process"),
    ):
        if is_wrong:
            message = f"lora cannot be served: {why}"
            raise HeadwayError(Code.FAILED_PRECONDITION, message, param="lora")


def _load_plain(model: str, device: torch.device, options: EngineOptions) -> LoadedModel | None:
    config = read_config(model)
    if config is None:
        return None
    refuse_unsupported(vars(config))
    if options.max_model_len is not None:
        refuse_length(config, options.max_model_len)
    dtype = DTYPES[dtype_name(config, options.dtype)]
    network = read_network(model, config, dtype, device)
    if network is None:
        return None
    return take_model(
        network,
        token_ids(config.eos_token_id),
        options.kernels,
        is_deterministic=options.deterministic,
    )
