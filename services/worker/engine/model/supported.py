"""Which checkpoints the engine computes rightly; others are refused by name, at the start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.errors import Code, HeadwayError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
# Others change the rotation of cached keys with the length of what follows.
ROPE_TYPES = ("default", "linear", "yarn", "llama3")
LAYER_TYPES = ("full_attention", "sliding_attention")
# What families that are not served are not served for, by their attention.
KNOWN = {
    "bloom": "ALiBi position biases",
    "mpt": "ALiBi position biases",
    "falcon": "ALiBi position biases",
    "gemma2": "soft-capped attention",
    "deepseek_v2": "multi-head latent attention",
    "deepseek_v3": "multi-head latent attention",
    "gpt_oss": "attention sinks",
    "llama4_text": "chunked attention",
    "t5": "relative position biases",
}
# Settings by which a checkpoint of any family asks for another attention than the served one.
VARIANTS = {
    "alibi": "ALiBi position biases",
    "use_alibi": "ALiBi position biases",
    "attn_logit_softcapping": "soft-capped attention",
    "final_logit_softcapping": "soft-capped logits",
    "kv_lora_rank": "multi-head latent attention",
    "attention_sinks": "attention sinks",
    "attention_chunk_size": "chunked attention",
    "use_bidirectional_attention": "attention in both directions",
}


def refuse_unsupported(config: Mapping[str, Any]) -> None:
    """Raise HeadwayError for a checkpoint that paged attention would compute wrongly.

    ``config`` holds the fields of a checkpoint's ``config.json``, with or without defaults.
    """
    model_type = config.get("model_type")
    if model_type not in FAMILIES:
        reason = f" ({KNOWN[model_type]})" if model_type in KNOWN else ""
        families = ", ".join(FAMILIES)
        raise unsupported(f"its model_type is {model_type!r}{reason}; served are {families}")
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise unsupported(f"its hidden_act is {activation!r}; served is 'silu'")
    if config.get("quantization_config") is not None:
        raise unsupported("its weights are quantised; take the unquantised checkpoint")
    _refuse_variants(config)
    _refuse_rotations(config.get("rope_parameters") or config.get("rope_scaling") or {})


def _refuse_variants(config: Mapping[str, Any]) -> None:
    for name, variant in VARIANTS.items():
        value = config.get(name)
        if value:
            raise unsupported(f"its {name} is {value!r} ({variant}); served is none")
    for kind in config.get("layer_types") or ():
        if kind not in LAYER_TYPES:
            raise unsupported(f"a layer's type is {kind!r}; served are {', '.join(LAYER_TYPES)}")


def _refuse_rotations(rope: Mapping[str, Any]) -> None:
    rope_type = rope.get("rope_type") or rope.get("type") or "default"
    if rope_type not in ROPE_TYPES:
        served = ", ".join(ROPE_TYPES)
        raise unsupported(f"its rope_type is {rope_type!r}; served are {served}")
    share = rope.get("partial_rotary_factor") or 1.0
    if share != 1.0:
        raise unsupported(f"its partial_rotary_factor is {share}; served is 1")
    if rope.get("mrope_section"):
        raise unsupported(f"its mrope_section is {rope['mrope_section']}; served is none")


def attention_window(config: Any) -> int | None:
    """Tokens that a layer with sliding attention sees; None where that is the whole context."""
    window = int(getattr(config, "sliding_window", None) or 0)
    layers = getattr(config, "layer_types", None) or ()
    # Mistral slides in every layer and lists none; Qwen lists which of its layers do.
    slides = "sliding_attention" in layers if layers else config.model_type == "mistral"
    is_less = 0 < window < int(config.max_position_embeddings)
    return window if slides and is_less else None


def longest(config: Any) -> int:
    """Tokens that are computed rightly: within its window sliding attention is full attention."""
    return attention_window(config) or int(config.max_position_embeddings)


def refuse_length(config: Any, asked: int) -> None:
    """Raise HeadwayError where a worker would serve other lengths than the model is known for.

    ``asked``: the greatest length of a request in tokens, 0 for the model's own. A model with a
    window is served up to it only where that is what was asked for.
    """
    window, context = attention_window(config), int(config.max_position_embeddings)
    if window is not None and not 0 < asked <= window:
        length = f"max_model_len is {asked}" if asked else f"its context is {context}"
        message = (
            f"the checkpoint cannot be served: {length}, and its layers attend over a sliding "
            f"window of {window} tokens (sliding_window), which is served up to its size: set "
            f"max_model_len to {window} or less, or take a checkpoint with full attention"
        )
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="max_model_len")
    if asked > context:
        message = f"max_model_len is {asked}; the model's limit is {context}: ask for less"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="max_model_len")


def unsupported(reason: str) -> HeadwayError:
    """Return the refusal of a checkpoint."""
    message = f"the checkpoint cannot be served: {reason}"
    return HeadwayError(Code.FAILED_PRECONDITION, message, param="model")
