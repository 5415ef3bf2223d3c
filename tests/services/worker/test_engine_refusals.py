"""What the engine cannot serve is refused by name: plans, checkpoints, devices, pools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config

from headway.engine import ModelSize, PassFailure
from headway.errors import Code, HeadwayError
from headway.forward_pass import ForwardPass, PassItem
from headway.request import StreamKey
from services.worker.engine.model.supported import refuse_unsupported
from tests.fakes.engine_rig import (
    GREEDY,
    MAX_MODEL_LEN,
    VOCAB_SIZE,
    Run,
    Schedule,
    backend,
    load,
    prompt,
    reference_output,
    save_checkpoint,
)

GOOD = PassItem(StreamKey("gateway", 1), (1, 2, 3), 0, (0,), True, GREEDY, (1, 2, 3), ())
OTHER = GOOD._replace(key=StreamKey("gateway", 2), block_table=(1,))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"token_ids": (1, VOCAB_SIZE)},
            f"gateway/2: {VOCAB_SIZE} is not a token id < {VOCAB_SIZE}",
        ),
        ({"token_ids": (-1,)}, "-1 is not a token id"),
        ({"token_ids": ()}, "0 tokens from position 0"),
        ({"start": -1}, "3 tokens from position -1"),
        ({"start": 14}, "its block table holds 16 tokens, the pass needs 17"),
        ({"start": MAX_MODEL_LEN - 2, "block_table": range(128)}, "limit is 1024"),
        ({"block_table": (128,)}, "128 is not a block id < 128"),
        ({"block_table": (-1,)}, "-1 is not a block id"),
    ],
)
def test_an_inconsistent_plan_is_refused_and_its_request_named(
    llama: str, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(PassFailure, match=said) as refused:
        backend(llama, 16).run(ForwardPass(1, (GOOD, OTHER._replace(**change))))
    assert refused.value.keys == (OTHER.key,)
    assert refused.value.code is Code.INTERNAL


def test_a_plan_that_writes_a_slot_twice_is_a_fault_of_the_core(llama: str) -> None:
    third = GOOD._replace(key=StreamKey("gateway", 3), block_table=(5,))
    clash = OTHER._replace(block_table=GOOD.block_table, start=2)
    with pytest.raises(AssertionError, match="a KV slot of its own"):
        backend(llama, 16).run(ForwardPass(1, (GOOD, third, clash)))


def poison(folder: str, target: Path, token_id: int) -> str:
    """The same checkpoint, but one token's embedding is not a number."""
    target.mkdir()
    for name in ("config.json", "generation_config.json"):
        (target / name).write_text((Path(folder) / name).read_text())
    weights = load_file(Path(folder) / "model.safetensors")
    weights["model.embed_tokens.weight"][token_id] = torch.nan
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    return str(target)


def test_logits_that_are_not_finite_blame_their_request_and_leave_the_others(
    llama: str, tmp_path: Path
) -> None:
    token_id = 50
    folder = poison(llama, tmp_path / "poisoned", token_id)
    engine = load(folder, num_blocks=12, block_size=4)
    healthy = [
        Run((3, 4, 5), 3, key=StreamKey("gateway", 0)),
        Run((6, 7, 8, 9, 10, 11, 12), 3, key=StreamKey("gateway", 1)),
    ]
    sick = Run((1, token_id, 2, 5, 6), 3, key=StreamKey("gateway", 9))
    for n, run in enumerate((*healthy, sick)):
        run.blocks = list(range(4 * n, 4 * n + 4))
    items = [run.item(99) for run in (healthy[0], sick, healthy[1])]
    sampled = engine.run(ForwardPass(1, tuple(items))).sampled
    assert [each.key for each in sampled if each.problem is not None] == [sick.key]
    (problem,) = [each.problem for each in sampled if each.problem is not None]
    assert (problem.code, "not finite" in problem.message) == (Code.INTERNAL, True)
    for run, item, each in zip((healthy[0], sick, healthy[1]), items, sampled, strict=True):
        if run is not sick:
            run.take(item, each)
    # The blocks of the failed request hold NaN; whoever gets them next must not see it.
    late = Run((3, 4, 5, 8), 3, key=StreamKey("gateway", 2))
    late.blocks, sick.blocks = sick.blocks, []
    healthy.append(late)
    while not all(run.done for run in healthy):
        going = [run for run in healthy if not run.done]
        items = [run.item(99) for run in going]
        result = engine.run(ForwardPass(2, tuple(items)))
        for run, item, each in zip(going, items, result.sampled, strict=True):
            run.take(item, each)
    for run in healthy:
        assert run.output == reference_output(llama, run.prompt, 3)


def write_config(folder: Path, source: str, **changes: Any) -> str:
    """The checkpoint's config with changes, beside its weights."""
    folder.mkdir()
    config = json.loads((Path(source) / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes((Path(source) / "model.safetensors").read_bytes())
    return str(folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "t5", "is_encoder_decoder": True}, "model_type is 't5'"),
        ({"model_type": "mamba"}, r"'mamba' \(state-space layers\)"),
        ({"model_type": "rwkv"}, r"'rwkv' \(recurrent layers\)"),
        ({"model_type": "vit"}, "transformers does not serve it"),
        ({"model_type": "biogpt"}, "lacks weights"),
        ({"mamba_d_state": 16}, r"mamba_d_state is 16 \(state-space layers\)"),
        ({"window_size": 256}, r"window_size is 256 \(attention over a local window\)"),
        ({"index_topk": 2048}, r"index_topk is 2048 \(sparse attention\)"),
        *(
            ({"quantization_config": {"quant_method": method, "bits": 4}}, f"by '{method}'; served")
            for method in ("gptq", "awq", "bitsandbytes", "mxfp4")
        ),
        (
            {"quantization_config": {}},
            "quantised by None; served: fp8, compressed-tensors; take the unquantised",
        ),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            "rope_type is 'dynamic'; supported: default",
        ),
        ({"num_hidden_layers": 3}, r"lacks weights: model\.layers\.2"),
        ({"model_type": "qwen3_next"}, r"'qwen3_next' \(linear attention\)"),
        ({"model_type": "gpt_oss"}, r"'gpt_oss' \(attention sinks\)"),
        ({"model_type": "deepseek_v3"}, r"'deepseek_v3' \(multi-head latent attention\)"),
        ({"model_type": "bloom"}, r"'bloom' \(ALiBi position biases\)"),
        ({"alibi": True}, r"its alibi is True \(ALiBi position biases\)"),
        ({"attn_logit_softcapping": 50.0}, r"attn_logit_softcapping is 50\.0 \(soft-capped"),
        ({"kv_lora_rank": 512}, r"kv_lora_rank is 512 \(multi-head latent attention\)"),
        ({"attention_chunk_size": 8192}, r"attention_chunk_size is 8192 \(chunked attention\)"),
        ({"attention_sinks": 4}, "attention_sinks is 4"),
        ({"use_bidirectional_attention": True}, "attention in both directions"),
        (
            {
                "rope_parameters": {
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "short_factor": [1.0] * 8,
                    "long_factor": [1.0] * 8,
                    "original_max_position_embeddings": 512,
                }
            },
            "rope_type is 'longrope'",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            r"partial_rotary_factor is 0\.5; only 1 is supported",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]}},
            r"mrope_section is \[2, 3, 3\]",
        ),
    ],
)
def test_an_unsupported_checkpoint_is_refused_by_name(
    llama: str, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    folder = write_config(tmp_path / "model", llama, **changes)
    with pytest.raises(HeadwayError, match=said) as refused:
        load(folder, num_blocks=4)
    assert refused.value.code is Code.FAILED_PRECONDITION


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    for name in (tmp_path, tmp_path / "absent"):
        with pytest.raises(HeadwayError, match="neither a folder nor a hub id") as refused:
            load(str(name), num_blocks=4)
        assert refused.value.code is Code.NOT_FOUND


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"device": "tpu"}, "device is 'tpu'; it must be cpu, cuda or cuda:N"),
        ({"device": "meta"}, "device is 'meta'"),
        ({"device": "cuda:99"}, "one of the [0-9]+ GPUs"),
        ({"dtype": "int8"}, "dtype 'int8' is not one of float32"),
        ({"num_blocks": 0}, "size in tokens is 0; it must be at least 1"),
        ({"num_blocks": 2**40}, "GiB free: ask for fewer blocks"),
    ],
)
def test_a_setting_that_cannot_be_met_is_refused_with_the_limit(
    llama: str, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(HeadwayError, match=said):
        load(llama, **({"num_blocks": 4} | settings))


@pytest.mark.parametrize(
    ("family", "changes", "expected"),
    [
        ("mistral", {"sliding_window": 40}, 40),
        ("mistral", {"sliding_window": 5000}, MAX_MODEL_LEN),
        ("qwen2", {"sliding_window": 40, "use_sliding_window": False}, MAX_MODEL_LEN),
        ("qwen2", {"sliding_window": 40, "use_sliding_window": True, "max_window_layers": 1}, 40),
    ],
)
def test_a_sliding_window_bounds_the_context_where_layers_use_it(
    tmp_path: Path, family: str, changes: dict[str, Any], expected: int
) -> None:
    folder = save_checkpoint(tmp_path / family, family, **changes)
    engine = load(folder, num_blocks=16)
    assert engine.info.max_model_len == expected
    run = Run(prompt(30), 10)
    Schedule(engine, chunk=16).complete([run])
    assert run.output == reference_output(folder, run.prompt, 10)


WINDOWED = {"sliding_window": 40, "use_sliding_window": True, "max_window_layers": 1}


@pytest.mark.parametrize(
    ("family", "changes", "asked", "said"),
    [
        ("mistral", {"sliding_window": 40}, 0, "its context is 1024, and its layers attend over"),
        ("mistral", {"sliding_window": 40}, 41, "max_model_len is 41, .* window of 40 tokens"),
        ("qwen2", WINDOWED, 0, "set max_model_len to 40 or less"),
        ("llama", {}, MAX_MODEL_LEN + 1, "max_model_len is 1025; the model's limit is 1024"),
    ],
)
def test_a_worker_that_would_outgrow_a_window_is_refused_with_the_way_out(
    tmp_path: Path, family: str, changes: dict[str, Any], asked: int, said: str
) -> None:
    folder = save_checkpoint(tmp_path / family, family, **changes)
    with pytest.raises(HeadwayError, match=said) as refused:
        load(folder, num_blocks=4, max_model_len=asked)
    assert refused.value.param == "max_model_len"


@pytest.mark.parametrize(
    ("family", "changes", "asked"),
    [
        ("mistral", {"sliding_window": 40}, 40),
        ("qwen2", WINDOWED, 12),
        ("qwen2", {"sliding_window": 40, "use_sliding_window": False}, 0),
        ("mistral", {"sliding_window": 5000}, 0),
    ],
)
def test_a_window_is_served_up_to_its_size_where_that_was_asked_for(
    tmp_path: Path, family: str, changes: dict[str, Any], asked: int
) -> None:
    folder = save_checkpoint(tmp_path / family, family, **changes)
    engine = load(folder, num_blocks=16, max_model_len=asked)
    assert engine.info.max_model_len >= asked


def test_a_layer_of_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "qwen3", "qwen3")
    config = Qwen3Config.from_pretrained(folder)
    config.layer_types = ["full_attention", "chunked_attention"]
    with pytest.raises(HeadwayError, match="a layer's type is 'chunked_attention'; supported:"):
        refuse_unsupported(config.to_dict())


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_biases_of_projections_are_computed(tmp_path: Path, family: str) -> None:
    folder = save_checkpoint(tmp_path / family, family, attention_bias=True)
    weights = load_file(Path(folder) / "model.safetensors")
    for name in [name for name in weights if name.endswith("_proj.bias")]:
        weights[name] = torch.randn_like(weights[name])
    save_file(weights, Path(folder) / "model.safetensors", {"format": "pt"})
    run = Run(prompt(9), 8)
    Schedule(load(folder, num_blocks=16)).complete([run])
    assert run.output == reference_output(folder, run.prompt, 8)


@pytest.mark.parametrize(
    ("in_generation_config", "in_config", "expected"),
    [([5, 6], 7, (5, 6)), (None, 7, (7,)), (None, None, ())],
)
def test_ends_of_sequence_are_those_of_generate(
    llama: str,
    tmp_path: Path,
    in_generation_config: list[int] | None,
    in_config: int | None,
    expected: tuple[int, ...],
) -> None:
    folder = write_config(tmp_path / "model", llama, eos_token_id=in_config)
    if in_generation_config is not None:
        generation = json.dumps({"eos_token_id": in_generation_config})
        (tmp_path / "model" / "generation_config.json").write_text(generation)
    assert load(folder, num_blocks=4).info.eos_token_ids == expected


def test_the_pools_size_may_be_chosen_once_the_model_is_known(llama: str) -> None:
    seen: list[ModelSize] = []

    def choose(size: ModelSize) -> int:
        seen.append(size)
        return 21

    engine = load(llama, num_blocks=choose)
    assert engine.info.num_blocks == 21
    assert seen == [ModelSize(engine.info.kv_bytes_per_token, MAX_MODEL_LEN, None)]
    assert engine.info.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4
