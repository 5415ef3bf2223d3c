"""Families without a packed decoder: transformers' modules over paged KV, as generate()."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from headway.errors import Code, HeadwayError
from headway.forward_pass import ForwardPass
from headway.request import SamplingParams
from tests.fakes.engine_rig import (
    MAX_MODEL_LEN,
    Run,
    Schedule,
    load,
    prompt,
    reference_model,
    reference_output,
    save_checkpoint,
)

SMALL = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
CHANGES: dict[str, dict[str, Any]] = {
    "phi3": {},
    "olmo2": {},
    "granite": {"logits_scaling": 4.0, "residual_multiplier": 0.8, "embedding_multiplier": 2.0},
    "smollm3": {},
    "starcoder2": {},
    "gemma": {},
    "gemma2": {
        **{"query_pre_attn_scalar": 16, "sliding_window": MAX_MODEL_LEN},
        **{"attn_logit_softcapping": 1.5, "final_logit_softcapping": 4.0},
    },
    "glm4": {},
    "cohere": {"logit_scale": 0.5},
    "phi": {},
    "gpt2": {"num_key_value_heads": 4},
    "qwen3_moe": EXPERTS,
    "mixtral": EXPERTS,
    "olmoe": EXPERTS,
}


@pytest.mark.parametrize("family", CHANGES)
def test_any_schedule_gives_the_tokens_of_generate(family: str, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, family, **SMALL | CHANGES[family])
    engine = load(folder, num_blocks=64, block_size=16)
    assert engine.info.kernels == "modules"
    runs = [Run(prompt(length), 8) for length in (1, 21, 40)]
    Schedule(engine, chunk=13, seed=3).complete(runs)
    for run in runs:
        assert run.output == reference_output(folder, run.prompt, run.num_tokens)


@pytest.mark.parametrize("family", ["granite", "cohere", "gemma2"])
def test_logits_are_scaled_as_the_family_scales_them(family: str, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, family, **SMALL | CHANGES[family])
    run = Run(prompt(9), 1, SamplingParams(temperature=0.0, num_logprobs=5), blocks=[0])
    found = load(folder, num_blocks=4).run(ForwardPass(1, (run.item(9),))).sampled[0].logprobs
    with torch.inference_mode():
        logits = reference_model(folder)(torch.tensor([run.prompt])).logits[0, -1]
    assert found is not None
    expected = logits.log_softmax(-1)[list(found.top_token_ids)].tolist()
    assert found.top_logprobs == pytest.approx(expected, abs=1e-3)


def test_an_activation_that_the_packed_decoder_lacks_is_computed(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, "llama", hidden_act="gelu")
    run = Run(prompt(20), 8)
    Schedule(load(folder, num_blocks=16)).complete([run])
    assert run.output == reference_output(folder, run.prompt, 8)


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("gpt_neox_japanese", r"its logits over paged KV differ by \d"),
        ("xglm", r"its logits over paged KV differ by \d"),
        ("nemotron", "its model_type is 'nemotron': its modules do not run over paged KV"),
        ("bert", r"its logits over paged KV differ by \d"),
    ],
)
def test_a_family_that_attends_otherwise_is_refused(family: str, said: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {**SMALL, "num_key_value_heads": 4, "eos_token_id": 96}
    folder = save_checkpoint(tmp_path, family, **changes)
    with pytest.raises(HeadwayError, match=said) as refused:
        load(folder, num_blocks=8)
    assert refused.value.code is Code.FAILED_PRECONDITION


@pytest.mark.parametrize("family", ["granite", "mixtral"])
def test_half_precision_is_not_refused(family: str, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, family, **SMALL | CHANGES[family], initializer_range=0.05)
    assert load(folder, num_blocks=8, dtype="bfloat16").info.dtype == "bfloat16"


def test_kernels_of_other_families_are_refused(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, "granite", **SMALL)
    with pytest.raises(HeadwayError, match="'granite' has no 'native' kernels"):
        load(folder, num_blocks=8, kernels="native")
