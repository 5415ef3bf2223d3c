"""Checks that the engine computes a checkpoint correctly; others are refused by name.

The packed decoder serves ``PACKED``. Any other decoder runs in transformers' own modules over paged
KV, unless its attention is one of those named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.errors import Code, HeadwayError

PACKED = ("llama", "mistral", "qwen2", "qwen3")
# Others change the rotation of cached keys with the length of what follows.
ROPE_TYPES = ("default", "linear", "yarn", "llama3")
LAYER_TYPES = ("full_attention", "sliding_attention")
SCALED: Mapping[str, str] = {"fp8": "accelerate", "compressed-tensors": "compressed_tensors"}
"""Methods of quantised weights that transformers turns into plain ones while it reads them, and
the package with which it does."""
_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
_CAPPED = ("gemma2",)
"""Families whose modules hand their caps to the attention, and cap logits themselves."""
_ALIBI = "ALiBi position biases"
_LATENT = "multi-head latent attention"
_STATE_SPACE = "state-space layers"
_RECURRENT = "recurrent layers"
_WINDOWS = "attention over a local window"
KNOWN: Mapping[str, str] = {
    "bloom": _ALIBI,
    "mpt": _ALIBI,
    "falcon": _ALIBI,
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "minicpm3": _LATENT,
    "gpt_oss": "attention sinks",
    "qwen3_next": "linear attention",
    "llama4_text": "chunked attention",
    "t5": "relative position biases",
    "diffllama": "differential attention",
    "mamba": _STATE_SPACE,
    "mamba2": _STATE_SPACE,
    "falcon_mamba": _STATE_SPACE,
    "falcon_h1": _STATE_SPACE,
    "bamba": _STATE_SPACE,
    "jamba": _STATE_SPACE,
    "zamba": _STATE_SPACE,
    "zamba2": _STATE_SPACE,
    "nemotron_h": _STATE_SPACE,
    "granitemoehybrid": _STATE_SPACE,
    "recurrent_gemma": _RECURRENT,
    "rwkv": _RECURRENT,
    "xlstm": _RECURRENT,
}
"""Families that are not served, with the part of their attention that is the reason."""

VARIANTS: Mapping[str, str] = {
    "alibi": _ALIBI,
    "use_alibi": _ALIBI,
    **dict.fromkeys(_CAPS, "soft-capped attention or logits"),
    "kv_lora_rank": _LATENT,
    "attention_sinks": "attention sinks",
    "attention_chunk_size": "chunked attention",
    "use_bidirectional_attention": "attention in both directions",
    "is_encoder_decoder": "an encoder beside the decoder",
    "window_size": _WINDOWS,
    "local_attention": _WINDOWS,
    "index_topk": "sparse attention",
    "index_topk_blocks": "sparse attention",
    "sparse_attention_config": "sparse attention",
    "mamba_d_state": _STATE_SPACE,
    "ssm_state_size": _STATE_SPACE,
}
"""Settings by which a checkpoint of any family asks for an attention that is not served."""


def is_packed(config: Mapping[str, Any]) -> bool:
    """Return whether the packed decoder serves a checkpoint, rather than transformers' modules."""
    return config.get("model_type") in PACKED and config.get("hidden_act", "silu") == "silu"


_NAMED = (
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "tie_word_embeddings",
    "vocab_size",
)
_NAMED_BY = {"qwen3": ("head_dim",)}
_DTYPES = ("float16", "bfloat16", "float32", None)


def is_plain(config: Mapping[str, Any]) -> bool:
    """Return whether a ``config.json`` says all that the packed decoder asks of a checkpoint.

    Then nothing depends on a family's defaults, and transformers is not needed to read it.
    """
    if not is_packed(config) or "quantization_config" in config:
        return False
    family, rope = config["model_type"], config.get("rope_parameters") or config
    return (
        all(_is_said(config.get(name)) for name in (*_NAMED, *_NAMED_BY.get(family, ())))
        and isinstance(rope, Mapping)
        and _is_said(rope.get("rope_theta"))
        and all(rope.get(name) in (None, "default") for name in ("rope_type", "type"))
        and not config.get("rope_scaling")
        and not any(config.get(name) for name in ("attention_bias", "mlp_bias"))
        and (config.get("dtype") or config.get("torch_dtype")) in _DTYPES
        and _has_plain_window(family, config)
    )


def _is_said(value: Any) -> bool:
    """Return whether a field is there: a number over 0, True or False."""
    return value is False or (isinstance(value, int | float) and value > 0)


def _has_plain_window(family: str, config: Mapping[str, Any]) -> bool:
    if family == "mistral":
        return "sliding_window" in config
    names = (
        ("use_sliding_window",) if "qwen" in family else ("use_sliding_window", "sliding_window")
    )
    return not any(config.get(name) for name in names)


def refuse_unsupported(config: Mapping[str, Any]) -> None:
    """Raise HeadwayError for a checkpoint that paged attention would compute incorrectly.

    ``config`` holds the fields of a checkpoint's ``config.json``, with or without defaults.
    """
    model_type = config.get("model_type")
    if model_type is None:
        raise unsupported("its config.json names no model_type")
    if model_type in KNOWN:
        raise unsupported(f"its model_type is {model_type!r} ({KNOWN[model_type]})")
    nested = config.get("text_config")
    if isinstance(nested, Mapping):  # of a model that reads images, too
        refuse_unsupported({"model_type": model_type, **nested})
    _refuse_quantised(config.get("quantization_config"))
    _refuse_variants(config)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    by_layer_type = [each for each in rope.values() if isinstance(each, Mapping)]
    for each in by_layer_type or [rope]:
        _refuse_rotations(each, allows_partial=model_type not in PACKED)


def _refuse_quantised(quantization: Any) -> None:
    if quantization is None:
        return
    given = quantization if isinstance(quantization, Mapping) else {}
    method = given.get("quant_method")
    if method not in SCALED:
        raise unsupported(
            f"its weights are quantised by {method!r}; served: {', '.join(SCALED)}; take the "
            "unquantised checkpoint, with --quantization where it should be smaller, or another "
            "engine (--engine vllm)"
        )


def _refuse_variants(config: Mapping[str, Any]) -> None:
    is_capped = config.get("model_type") in _CAPPED
    for name, variant in VARIANTS.items():
        value = config.get(name)
        if value and not (is_capped and name in _CAPS):
            raise unsupported(f"its {name} is {value!r} ({variant}); none is supported")
    for kind in config.get("layer_types") or ():
        if kind not in LAYER_TYPES:
            raise unsupported(f"a layer's type is {kind!r}; supported: {', '.join(LAYER_TYPES)}")


def _refuse_rotations(rope: Mapping[str, Any], *, allows_partial: bool) -> None:
    rope_type = rope.get("rope_type") or rope.get("type") or "default"
    if rope_type not in ROPE_TYPES:
        served = ", ".join(ROPE_TYPES)
        raise unsupported(f"its rope_type is {rope_type!r}; supported: {served}")
    share = rope.get("partial_rotary_factor") or 1.0
    if share != 1.0 and not allows_partial:
        raise unsupported(f"its partial_rotary_factor is {share}; only 1 is supported")
    if rope.get("mrope_section"):
        raise unsupported(f"its mrope_section is {rope['mrope_section']}; none is supported")


def attention_window(config: Any) -> int | None:
    """Return the tokens that a sliding layer sees; None where no layer slides in this context."""
    window = int(getattr(config, "sliding_window", None) or 0)
    layers = getattr(config, "layer_types", None) or ()
    # A config without layer types that has a window slides in every layer, as Mistral's does.
    slides = "sliding_attention" in layers if layers else window > 0
    slides = slides and getattr(config, "use_sliding_window", None) is not False
    is_less = 0 < window < _context(config)
    return window if slides and is_less else None


def longest(config: Any) -> int:
    """Return the longest context: within its window sliding attention is full attention."""
    return attention_window(config) or _context(config)


def _context(config: Any) -> int:
    context = getattr(config, "max_position_embeddings", None)
    if not context:
        raise unsupported("its config.json names no max_position_embeddings")
    return int(context)


def refuse_length(config: Any, asked: int) -> None:
    """Raise HeadwayError for a length that the model does not compute correctly.

    ``asked``: the greatest length of a request in tokens, 0 for the model's own. A model with a
    window is served only if the operator asks for a length within it.
    """
    window, context = attention_window(config), _context(config)
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
