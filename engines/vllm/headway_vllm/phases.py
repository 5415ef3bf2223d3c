"""The tokens around a model's reasoning, as vLLM knows them or as the tokenizer shows."""

from __future__ import annotations

from typing import Any

from headway.core.reasoning import Markers, marker_ids


def markers_of(config: Any) -> Markers:
    """Return the tokens around the reasoning of a model; none if it does not reason.

    ``config``: vLLM's. ``--reasoning-parser`` says them first, then the tokenizer's own markers,
    as a worker finds them. A model without a tokenizer has none.
    """
    parsed, model = config.reasoning_config, config.model_config
    if parsed is not None and parsed.enabled:
        end, start = parsed.natural_reasoning_end_token_ids, parsed.reasoning_start_token_ids
        return Markers(tuple(end), tuple(start))
    if model.skip_tokenizer_init:
        return Markers()
    from vllm.tokenizers import cached_tokenizer_from_config

    tokenizer = cached_tokenizer_from_config(model)
    ids = marker_ids(getattr(tokenizer, "get_added_vocab", dict)())  # not every kind has names
    return Markers() if ids is None else Markers((ids[1],), (ids[0],))
