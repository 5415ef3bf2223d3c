"""Loading of checkpoints; an unsupported one is refused with the reason."""

from __future__ import annotations

import torch

from services.worker.engine.kv.pool import DTYPES
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
    loaded = None
    if group_size() == 1 and not options.quantization:
        loaded = _load_plain(model, device, options)
    if loaded is not None:
        return loaded
    from services.worker.engine.model import by_transformers  # its import takes seconds

    return by_transformers.load_model(model, device, options)


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
