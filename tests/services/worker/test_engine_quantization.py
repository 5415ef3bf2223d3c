"""Weights in fewer bits, by transformers and the libraries that it works with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from headway.errors import HeadwayError
from services.worker.engine.model import by_transformers
from services.worker.engine.model.quantization import SCHEMES
from tests.fakes.engine_rig import Run, Schedule, load, prompt, reference_output, save_checkpoint

MINI = str(Path(__file__).parents[3] / "models" / "headway-mini")


def test_eight_bits_still_answer_as_the_model_does() -> None:
    pytest.importorskip("torchao", reason="the extra `quantization` is not installed")
    engine = load(MINI, num_blocks=64, quantization="torchao-int8")
    asked = tuple(b"Add 17, 25, 8.")
    run = Run(asked, 8)
    Schedule(engine).complete([run])
    assert run.output == reference_output(MINI, asked, 8)


def test_a_scheme_that_nobody_knows_is_refused(llama: str) -> None:
    with pytest.raises(HeadwayError, match=f"must be one of {', '.join(SCHEMES)}"):
        load(llama, num_blocks=8, quantization="one-bit")


def test_a_scheme_without_its_library_names_it(llama: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "bitsandbytes", None)
    with pytest.raises(HeadwayError, match="pip install bitsandbytes"):
        load(llama, num_blocks=8, quantization="bitsandbytes-4bit")


Weights = dict[str, torch.Tensor]
BLOCK = 32
SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}


def save_fp8(folder: Path, family: str) -> tuple[str, str]:
    """A checkpoint with products in FP8, scaled in blocks, and the plain one that it stands for."""
    source = Path(save_checkpoint(folder / "source", family, **SIZES))
    quantised, plain = dict(load_file(source / "model.safetensors")), {}
    for name, weight in tuple(quantised.items()):
        plain[name] = weight
        if not name.endswith("proj.weight"):
            continue
        blocks = torch.unflatten(torch.unflatten(weight, 0, (-1, BLOCK)), 2, (-1, BLOCK))
        scales = blocks.abs().amax((1, 3), keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
        small = (blocks / scales).to(torch.float8_e4m3fn)
        plain[name] = (small.float() * scales).reshape(weight.shape)
        quantised[name] = small.view(torch.uint8).reshape(weight.shape).view(torch.float8_e4m3fn)
        quantised[f"{name}_scale_inv"] = scales[:, 0, :, 0].contiguous()
    how = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [BLOCK] * 2}
    return save_both(folder, source, quantised, plain, how)


def save_both(
    folder: Path, source: Path, quantised: Weights, plain: Weights, how: Mapping[str, object]
) -> tuple[str, str]:
    """Write a quantised checkpoint, and the plain one that it stands for; return their folders."""
    config = json.loads((source / "config.json").read_text())
    for name, weights, more in (
        ("quantised", quantised, {"quantization_config": how}),
        ("plain", plain, {}),
    ):
        (folder / name).mkdir()
        save_file(weights, folder / name / "model.safetensors", metadata={"format": "pt"})
        (folder / name / "config.json").write_text(json.dumps(config | more))
    return str(folder / "quantised"), str(folder / "plain")


@pytest.mark.parametrize("family", ["llama", "qwen3", "smollm3", "starcoder2"])
def test_an_fp8_checkpoint_gives_the_tokens_of_generate(family: str, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="transformers reads FP8 weights with accelerate")
    fp8, plain = save_fp8(tmp_path, family)
    runs = [Run(prompt(length), 8) for length in (1, 21, 40)]
    engine = load(fp8, num_blocks=64)
    Schedule(engine, chunk=13, seed=3).complete(runs)
    assert engine.info.kernels == load(plain, num_blocks=8).info.kernels
    for run in runs:
        assert run.output == reference_output(plain, run.prompt, run.num_tokens)


def test_an_fp8_checkpoint_is_not_quantised_again(tmp_path: Path) -> None:
    fp8, _ = save_fp8(tmp_path, "llama")
    with pytest.raises(HeadwayError, match="the checkpoint's weights are quantised: none"):
        load(fp8, num_blocks=8, quantization="torchao-int8")


# --- what llm-compressor writes -----------------------------------------------------------


def save_compressed(folder: Path, form: str, bits: int, kind: str) -> tuple[str, str]:
    """A checkpoint in compressed-tensors with a scale for each row, and its plain one."""
    source = Path(save_checkpoint(folder / "source", "llama", **SIZES))
    quantised, plain = dict(load_file(source / "model.safetensors")), {}
    most = torch.finfo(torch.float8_e4m3fn).max if kind == "float" else 2 ** (bits - 1) - 1
    for name, weight in tuple(quantised.items()):
        plain[name] = weight
        if not name.endswith("proj.weight"):
            continue
        scale = weight.abs().amax(1, keepdim=True) / most
        if kind == "float":
            small = (weight / scale).to(torch.float8_e4m3fn)
        else:
            small = (weight / scale).round().to(torch.int8)
        plain[name] = small.float() * scale
        quantised[f"{name}_scale"] = scale
        if form == "pack-quantized":
            quantised[f"{name}_packed"] = pack(quantised.pop(name), small, bits)
            quantised[f"{name}_shape"] = torch.tensor(weight.shape)
        else:
            quantised[name] = small
    rule = {"num_bits": bits, "type": kind, "symmetric": True, "strategy": "channel"}
    how = {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": rule}},
        "ignore": ["lm_head"],
    }
    return save_both(folder, source, quantised, plain, how)


def pack(weight: torch.Tensor, small: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack numbers of few bits into 32, the first in the lowest bits, from 0 on."""
    each = 32 // bits
    offset = (small.to(torch.int64) + 2 ** (bits - 1)).unflatten(1, (-1, each))
    shifts = bits * torch.arange(each)
    packed = (offset << shifts).sum(2)
    assert packed.shape[1] * each == weight.shape[1]
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


@pytest.mark.parametrize(
    ("form", "bits", "kind"),
    [("float-quantized", 8, "float"), ("int-quantized", 8, "int"), ("pack-quantized", 4, "int")],
)
def test_what_llm_compressor_writes_gives_the_tokens_of_generate(
    form: str, bits: int, kind: str, tmp_path: Path
) -> None:
    pytest.importorskip("compressed_tensors", reason="the extra `quantization` is not installed")
    compressed, plain = save_compressed(tmp_path, form, bits, kind)
    runs = [Run(prompt(length), 8) for length in (1, 21, 40)]
    Schedule(load(compressed, num_blocks=64), chunk=13, seed=3).complete(runs)
    for run in runs:
        assert run.output == reference_output(plain, run.prompt, run.num_tokens)


def test_a_method_without_its_library_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compressed, _ = save_compressed(tmp_path, "int-quantized", 8, "int")
    monkeypatch.setattr(by_transformers, "find_spec", lambda name: None)
    with pytest.raises(HeadwayError, match="pip install compressed-tensors"):
        load(compressed, num_blocks=8)
