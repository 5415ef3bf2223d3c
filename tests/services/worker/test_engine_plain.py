"""Plain checkpoints are read without transformers; what is not plain is left to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.worker.engine.model import by_transformers
from services.worker.engine.model.loader import load_model
from services.worker.engine.model.plain import read_config, read_network
from services.worker.engine.options import EngineOptions
from tests.fakes.engine_rig import (
    FAMILIES,
    Run,
    Schedule,
    load,
    prompt,
    reference_output,
    save_checkpoint,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_plain_checkpoint_has_the_weights_that_transformers_reads(
    family: str, is_tied: bool, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_checkpoint(tmp_path, family, tie_word_embeddings=is_tied, eos_token_id=[7, 9])
    options = EngineOptions(1, kernels="torch", dtype=dtype)
    theirs = by_transformers.load_model(folder, CPU, options)
    monkeypatch.setattr(by_transformers, "load_model", None)
    ours = load_model(folder, CPU, options)
    assert (ours.kv_shape, ours.vocab_size, ours.max_model_len, ours.eos_token_ids) == (
        *(theirs.kv_shape, theirs.vocab_size, theirs.max_model_len),
        (7, 9),
    )
    for mine, other in ((ours.lm_head, theirs.lm_head), (ours.decoder, theirs.decoder)):
        found, expected = tensors_of(mine), tensors_of(other)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in found)


def tensors_of(value: Any, name: str = "") -> dict[str, torch.Tensor]:
    """All tensors that are reached through attributes and lists, by their way."""
    if isinstance(value, torch.Tensor):
        return {name: value.to_dense() if value.is_mkldnn else value}
    if isinstance(value, (list, tuple)):
        parts = {str(index): part for index, part in enumerate(value)}
    elif type(value).__module__.startswith("services."):
        names = getattr(value, "__slots__", None) or vars(value)
        parts = {part: getattr(value, part) for part in names}
    else:
        return {}
    return {
        path: tensor
        for key, part in parts.items()
        for path, tensor in tensors_of(part, f"{name}.{key}").items()
    }


def test_weights_in_several_files_are_found(llama: str, tmp_path: Path) -> None:
    weights, names = load_file(Path(llama) / "model.safetensors"), ("one", "two")
    index = {key: names[place % 2] for place, key in enumerate(weights)}
    for name in names:
        save_file({k: v for k, v in weights.items() if index[k] == name}, tmp_path / name)
    (tmp_path / "config.json").write_bytes((Path(llama) / "config.json").read_bytes())
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    run = Run(prompt(20, 1), 8)
    Schedule(load(str(tmp_path), num_blocks=64)).complete([run])
    assert run.output == reference_output(llama, run.prompt, 8)


@pytest.mark.parametrize(
    "fields",
    [
        {"attention_bias": True},
        {"quantization_config": {"quant_method": "fp8"}},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": {"type": "linear", "factor": 2.0, "rope_theta": 1e4}},
        {"use_sliding_window": True},
        {"sliding_window": 16},
        {"num_key_value_heads": None},
        {"num_attention_heads": 0},
        {"dtype": "half"},
        {"hidden_act": "gelu"},
        {"model_type": "starcoder2"},
    ],
)
def test_a_config_that_asks_for_more_is_left_to_transformers(
    fields: dict[str, Any], llama: str, tmp_path: Path
) -> None:
    config = json.loads((Path(llama) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_config(str(tmp_path)) is not None
    (tmp_path / "config.json").write_text(json.dumps(config | fields))
    assert read_config(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("generation", "eos"), [("{", None), ("[]", None), ('{"eos_token_id": []}', 5), ("{}", 5)]
)
def test_a_damaged_generation_config_is_left_to_transformers(
    generation: str, eos: int | None, llama: str, tmp_path: Path
) -> None:
    config = json.loads((Path(llama) / "config.json").read_text()) | {"eos_token_id": 5}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text(generation)
    assert getattr(read_config(str(tmp_path)), "eos_token_id", None) == eos


def test_one_file_goes_before_shards_and_shards_lie_in_the_folder(
    llama: str, tmp_path: Path
) -> None:
    config = read_config(llama)
    assert config is not None
    index = {"weight_map": {"model.norm.weight": f"{llama}/model.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_network(str(tmp_path), config, torch.float32, CPU) is None
    (tmp_path / "model.safetensors").symlink_to(Path(llama) / "model.safetensors")
    assert read_network(str(tmp_path), config, torch.float32, CPU) is not None


@pytest.mark.parametrize(
    "name", ["num_key_value_heads", "tie_word_embeddings", "eos_token_id", "rope_parameters"]
)
def test_a_config_that_relies_on_its_familys_defaults_is_left_to_transformers(
    name: str, llama: str, tmp_path: Path
) -> None:
    config = json.loads((Path(llama) / "config.json").read_text())
    del config[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_config(str(tmp_path)) is None


def _without_norm(weights: dict[str, torch.Tensor]) -> None:
    del weights["model.norm.weight"]


def _with_more(weights: dict[str, torch.Tensor]) -> None:
    weights["model.layers.0.self_attn.sinks"] = torch.zeros(4)


def _with_other_heads(weights: dict[str, torch.Tensor]) -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    weights[name] = weights[name].repeat(2, 1)


def _with_biases(weights: dict[str, torch.Tensor]) -> None:
    for part in "qkv":
        name = f"model.layers.0.self_attn.{part}_proj"
        weights[f"{name}.bias"] = torch.ones(len(weights[f"{name}.weight"]))


@pytest.mark.parametrize("change", [_without_norm, _with_more, _with_other_heads, _with_biases])
def test_a_file_with_other_weights_is_left_to_transformers(
    change: Callable[[dict[str, torch.Tensor]], None], llama: str, tmp_path: Path
) -> None:
    config = read_config(llama)
    assert config is not None
    weights = load_file(Path(llama) / "model.safetensors")
    change(weights)
    save_file(weights, tmp_path / "model.safetensors")
    assert read_network(llama, config, torch.float32, CPU) is not None
    assert read_network(str(tmp_path), config, torch.float32, CPU) is None
