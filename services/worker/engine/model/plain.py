"""Reading of plain checkpoints without transformers, whose import takes longer than their weights.

``PlainNetwork`` has the parts of transformers' models that packed decoders take. Whatever is not
plain is left to transformers (``by_transformers``), with its defaults and its refusals.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from services.runtime.reasoning import tokenizer_file
from services.worker.engine.model.supported import is_plain

Config = SimpleNamespace
"""The fields of a ``config.json`` as attributes."""

_WEIGHTS = "model.safetensors"
_BIASED = "qwen2"
"""The family whose queries, keys and values have biases; no other product of a plain one has."""


class PlainNetwork:
    """The weights of a checkpoint under the names of transformers' modules."""

    def __init__(self, config: Config, weights: _Weights) -> None:
        """KeyError where a weight is missing or has another shape than the config says."""
        self.config = config
        biased = config.model_type == _BIASED
        self.dtype = weights.dtype
        self.device = weights.device
        hidden, size = config.hidden_size, config.head_dim
        rows, kv_rows = config.num_attention_heads * size, config.num_key_value_heads * size
        inner = config.intermediate_size

        def layer(index: int) -> SimpleNamespace:
            name = f"model.layers.{index}."
            attention = SimpleNamespace(
                q_proj=weights.product(f"{name}self_attn.q_proj", rows, hidden, biased),
                k_proj=weights.product(f"{name}self_attn.k_proj", kv_rows, hidden, biased),
                v_proj=weights.product(f"{name}self_attn.v_proj", kv_rows, hidden, biased),
                o_proj=weights.product(f"{name}self_attn.o_proj", hidden, rows),
            )
            if config.model_type == "qwen3":
                attention.q_norm = weights.part(f"{name}self_attn.q_norm", size)
                attention.k_norm = weights.part(f"{name}self_attn.k_norm", size)
            return SimpleNamespace(
                self_attn=attention,
                mlp=SimpleNamespace(
                    gate_proj=weights.product(f"{name}mlp.gate_proj", inner, hidden),
                    up_proj=weights.product(f"{name}mlp.up_proj", inner, hidden),
                    down_proj=weights.product(f"{name}mlp.down_proj", hidden, inner),
                ),
                input_layernorm=weights.part(f"{name}input_layernorm", hidden),
                post_attention_layernorm=weights.part(f"{name}post_attention_layernorm", hidden),
            )

        self.model = SimpleNamespace(
            embed_tokens=weights.part("model.embed_tokens", config.vocab_size, hidden),
            norm=weights.part("model.norm", hidden),
            rotary_emb=_Rotation(config.rope_theta, size),
            layers=[layer(index) for index in range(config.num_hidden_layers)],
        )
        self._head: SimpleNamespace = self.model.embed_tokens
        if not config.tie_word_embeddings:
            self._head = weights.part("lm_head", config.vocab_size, hidden)

    def get_output_embeddings(self) -> SimpleNamespace:
        """Return the head, as transformers' models do."""
        return self._head


class _Rotation:
    """Angles of queries and keys by position, without scaling."""

    def __init__(self, theta: float, size: int) -> None:
        self._frequencies = 1 / theta ** (torch.arange(0, size, 2, dtype=torch.float) / size)

    def __call__(
        self, like: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines (…, positions, size) in the dtype of ``like``."""
        angles = positions[..., None].float() * self._frequencies.to(like.device)
        both = torch.cat((angles, angles), dim=-1)
        return both.cos().to(like.dtype), both.sin().to(like.dtype)


class _Weights:
    """Tensors by name, each taken once, on a device and in a dtype."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device
        self._files: dict[str, Any] = {}

    def add(self, file: Any) -> None:
        """Take the names of an open file."""
        self._files |= dict.fromkeys(file.keys(), file)

    def part(self, name: str, *shape: int) -> SimpleNamespace:
        """Return a module's weight; KeyError where it is missing or shaped otherwise."""
        return SimpleNamespace(weight=self._take(f"{name}.weight", shape))

    def product(
        self, name: str, outputs: int, inputs: int, biased: bool = False
    ) -> SimpleNamespace:
        """Return the weight of a matrix product, and the bias that its family gives it."""
        module = self.part(name, outputs, inputs)
        module.bias = self._take(f"{name}.bias", (outputs,)) if biased else None
        return module

    def _take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor: torch.Tensor = self._files.pop(name).get_tensor(name)
        if tensor.shape != shape or not tensor.is_floating_point():
            raise KeyError(name)
        return tensor.to(self.device, self.dtype)

    def left(self) -> Iterator[str]:
        """Return the names that nobody has taken."""
        return iter(self._files)


def read_config(model: str) -> Config | None:
    """Return what a folder says of a plain checkpoint; None where it is none, or not plain."""
    try:
        fields = json.loads((Path(model) / "config.json").read_bytes())
        generation = _generation(Path(model))
    except (OSError, ValueError):
        return None
    if not (isinstance(fields, dict) and isinstance(generation, dict) and is_plain(fields)):
        return None
    size = fields["hidden_size"] // fields["num_attention_heads"]
    rope = fields.get("rope_parameters") or fields
    more = {
        "head_dim": fields.get("head_dim") or size,
        "rope_theta": rope["rope_theta"],
        "dtype": fields.get("dtype") or fields.get("torch_dtype"),
        "use_sliding_window": fields.get("use_sliding_window", fields["model_type"] == "mistral"),
    }
    named = [each["eos_token_id"] for each in (generation, fields) if "eos_token_id" in each]
    ids = more["eos_token_id"] = next((each for each in named if each not in (None, [])), None)
    if ids is None:  # transformers would ask the tokenizer, where there is one
        is_known = bool(named) and tokenizer_file(model) is None
    else:
        is_known = all(type(each) is int for each in (ids if type(ids) is list else [ids]))
    return Config(**{**fields, **more}) if is_known else None


def _generation(folder: Path) -> Any:
    try:
        return json.loads((folder / "generation_config.json").read_bytes())
    except FileNotFoundError:
        return {}


def read_network(
    model: str, config: Config, dtype: torch.dtype, device: torch.device
) -> PlainNetwork | None:
    """Read the weights; None where a file has others than a plain checkpoint of its family.

    One file goes before shards, and a shard's name is that of a file in the folder.
    """
    folder, weights = Path(model), _Weights(dtype, device)
    names = [_WEIGHTS]
    try:
        if not (folder / _WEIGHTS).exists():
            index = json.loads((folder / f"{_WEIGHTS}.index.json").read_bytes())
            names = sorted(set(index["weight_map"].values()))
        if any(Path(name).name != name for name in names):
            return None
        with ExitStack() as files:
            for name in names:
                weights.add(files.enter_context(safe_open(folder / name, "pt")))
            network = PlainNetwork(config, weights)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError):
        return None
    return None if any(weights.left()) else network
