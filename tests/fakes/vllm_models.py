"""Tiny models of random weights, for what vLLM does beyond plain text over one kind of KV."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from tests.fakes.vllm_rig import MODEL

WINDOW = 64
IMAGE, PATCH, QUERIES = 28, 14, 4
_VOCABULARY, _END, _PAD, _BEGIN = 272, 258, 257, 262

_FIRST = "model.layers.0."
_HEADS: dict[str, Any] = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1024,
    "eos_token_id": _END,
    "bos_token_id": _BEGIN,
    "pad_token_id": _PAD,
    "initializer_range": 0.2,
}
"""A small model, and a head for it: both have KV of one shape."""


def windowed_model(folder: Path) -> Path:
    """Save a Gemma 3 whose layers see ``WINDOW`` tokens, but for one that sees all."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(1)
    window, whole = "sliding_attention", "full_attention"
    config = Gemma3TextConfig(
        vocab_size=_VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        sliding_window=WINDOW,
        layer_types=[window, window, whole, window],
        max_position_embeddings=1024,
        eos_token_id=_END,
        bos_token_id=_BEGIN,
        pad_token_id=_PAD,
        initializer_range=0.3,
    )
    model = Gemma3ForCausalLM(config)
    for name, weights in model.named_parameters():
        if "post_" in name:  # what the layers say counts for more than the newest token
            weights.data.fill_(3.0)
        elif "embed" in name:
            weights.data.mul_(0.1)
    model.save_pretrained(folder)
    return folder


def seeing_model(folder: Path) -> Path:
    """Save a BLIP-2 with its processor: it reads images of ``IMAGE`` pixels, a text before."""
    from transformers import (
        Blip2Config,
        Blip2ForConditionalGeneration,
        Blip2Processor,
        Blip2QFormerConfig,
        Blip2VisionConfig,
        OPTConfig,
        PreTrainedTokenizerFast,
    )
    from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil

    torch.manual_seed(1)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(MODEL)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"], "bos_token": "<begin>"})
    images = BlipImageProcessorPil(size={"height": IMAGE, "width": IMAGE})
    processor: Any = Blip2Processor
    processor(images, tokenizer, num_query_tokens=QUERIES).save_pretrained(folder)
    small: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    sight = Blip2VisionConfig(
        **small, num_attention_heads=2, image_size=IMAGE, patch_size=PATCH, initializer_range=0.2
    )
    bridge = Blip2QFormerConfig(
        **small,
        vocab_size=-(-len(tokenizer) // 64) * 64,
        num_attention_heads=2,
        encoder_hidden_size=32,
        cross_attention_frequency=1,
        initializer_range=0.2,
    )
    text = OPTConfig(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=64,
        word_embed_proj_dim=64,
        ffn_dim=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=1024,
        eos_token_id=_END,
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=_PAD,
        init_std=0.3,
        tie_word_embeddings=False,
    )
    config = Blip2Config(
        vision_config=sight.to_dict(),
        qformer_config=bridge.to_dict(),
        text_config=text.to_dict(),
        num_query_tokens=QUERIES,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )
    model = Blip2ForConditionalGeneration(config)
    torch.nn.init.normal_(model.query_tokens)
    model.save_pretrained(folder)
    return folder


def guessing_model(folder: Path) -> Path:
    """Save a MiMo with a layer that guesses the token after the next one (MTP).

    Its tokens often follow themselves, and the layer guesses that they do.
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(1)
    config = Qwen2Config(**_HEADS, tie_word_embeddings=False)
    model = Qwen2ForCausalLM(config)
    model.model.embed_tokens.weight.data.normal_()
    weights = dict(model.state_dict())
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    first = {n.removeprefix(_FIRST): w.clone() for n, w in weights.items() if n.startswith(_FIRST)}
    ones, guess = torch.ones(config.hidden_size), "model.mtp_layers.0."
    weights |= {f"{guess}{name}": weight for name, weight in _weak(first).items()}
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        weights[f"{guess}{name}.weight"] = ones.clone()
    weights[f"{guess}input_proj.weight"] = torch.eye(config.hidden_size, 2 * config.hidden_size)
    more = {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    return _save(folder, weights, config.to_dict() | more)


def eagle_head(folder: Path) -> Path:
    """Save a head (EAGLE) for ``guessing_model``: it guesses that each token follows itself."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(2)
    config = LlamaConfig(**_HEADS, architectures=["LlamaForCausalLM"])
    weights = LlamaForCausalLM(config).state_dict()
    first = {n.removeprefix(_FIRST): w for n, w in weights.items() if n.startswith(_FIRST)}
    del first["input_layernorm.weight"]  # such a head has none
    head = {f"layers.0.{name}": weight for name, weight in _weak(first).items()}
    size = config.hidden_size
    head["fc.weight"] = torch.eye(2 * size)[size:].clone()
    return _save(folder, head, config.to_dict() | {"num_hidden_layers": 1})


def _weak(layer: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a layer's weights such that it adds little to what goes through it."""
    outs = ("o_proj.weight", "down_proj.weight")
    return {n: w * 0.1 if n.endswith(outs) else w.clone() for n, w in layer.items()}


def _save(folder: Path, weights: dict[str, torch.Tensor], config: dict[str, Any]) -> Path:
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def adapter(folder: Path, seed: int, rank: int = 8) -> Path:
    """Save an adapter (LoRA) of random weights for the small model of ``MODEL``."""
    from safetensors.torch import save_file

    config = json.loads((MODEL / "config.json").read_text())
    size, head = config["hidden_size"], config["head_dim"]
    widths = {
        "q_proj": config["num_attention_heads"] * head,
        "v_proj": config["num_key_value_heads"] * head,
    }
    random = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for name, width in widths.items():
            path = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            first = torch.randn((rank, size), generator=random) / size**0.5
            weights[f"{path}.lora_A.weight"] = first
            weights[f"{path}.lora_B.weight"] = torch.randn((width, rank), generator=random) / 4
    folder.mkdir(parents=True)
    save_file(weights, folder / "adapter_model.safetensors")
    about = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": list(widths)}
    (folder / "adapter_config.json").write_text(json.dumps(about))
    return folder
