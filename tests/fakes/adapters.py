"""Random LoRA adapters as PEFT saves them, and the same as whole checkpoints."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
TARGETS = (*ATTENTION, "gate_proj", "up_proj", "down_proj")


def save_adapter(
    folder: Path,
    checkpoint: str,
    *,
    seed: int,
    rank: int = 4,
    alpha: float = 8.0,
    size: float = 0.4,
    targets: Sequence[str] = TARGETS,
    **config: Any,
) -> str:
    """Write an adapter of a checkpoint; its merged weights are in ``folder/merged``."""
    network = cast(Any, AutoModelForCausalLM).from_pretrained(checkpoint, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    tensors: dict[str, torch.Tensor] = {}
    for name, module in network.named_modules():
        if name.rpartition(".")[2] not in targets:
            continue
        outputs, inputs = module.weight.shape
        down = torch.randn(rank, inputs, generator=generator) / math.sqrt(inputs)
        up = torch.randn(outputs, rank, generator=generator) * size
        module.weight.data += scale * up @ down
        prefix = f"base_model.model.{name}.lora_"
        tensors |= {f"{prefix}A.weight": down, f"{prefix}B.weight": up}
    network.save_pretrained(folder / "merged")
    for file in Path(checkpoint).glob("*.json*"):  # tokenizer, template and defaults
        if not (folder / "merged" / file.name).exists() and "safetensors" not in file.name:
            shutil.copy(file, folder / "merged")
    save_file(tensors, folder / "adapter_model.safetensors")
    told = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none"}
    told |= {"target_modules": list(targets), "base_model_name_or_path": checkpoint, **config}
    (folder / "adapter_config.json").write_text(json.dumps(told))
    return str(folder)
