"""A deterministic pass: what is beside a request, cut off it or cached never changes a bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headway.errors import Code, HeadwayError
from headway.request import SamplingParams, StreamKey, TokenLogprobs
from services.worker.engine.backend import TorchBackend
from services.worker.engine.cpu.linear import GatedLinear, Linear
from tests.fakes.engine_rig import (
    FAMILIES,
    Run,
    Schedule,
    load,
    prompt,
    reference_output,
    save_checkpoint,
)
from tests.fakes.kernel_reference import HAS_COMPILER

if not HAS_COMPILER:
    pytest.skip("a deterministic pass needs compiled kernels", allow_module_level=True)

LENGTHS = (1, 7, 40, 70, 33)
NUM_TOKENS = 10
GREEDY = SamplingParams(temperature=0.0, num_logprobs=5)
RANDOM = SamplingParams(temperature=1.3, top_p=0.9, num_logprobs=5, seed=3)
Outcome = tuple[list[int], list[TokenLogprobs | None]]


def checkpoint(folder: Path, family: str) -> str:
    """Wide enough for matrix tiles, where the processor has them."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    return save_checkpoint(folder, family, **sizes, initializer_range=0.1)


def engine(folder: str, dtype: str, **options: object) -> TorchBackend:
    return load(folder, num_blocks=512, block_size=4, dtype=dtype, deterministic=True, **options)


def asked(sampling: SamplingParams) -> list[Run]:
    return [Run(prompt(length), NUM_TOKENS, sampling) for length in LENGTHS]


def alone(serving: TorchBackend, sampling: SamplingParams) -> list[Outcome]:
    """Each request by itself, its prompt in one piece."""
    runs = asked(sampling)
    for run in runs:
        schedule = Schedule(serving, chunk=4096)
        while not run.done:
            schedule.step_by([run], 4096)
    return [(run.output, run.logprobs) for run in runs]


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["greedy", "random"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_any_schedule_gives_the_same_bits(
    family: str, dtype: str, sampling: SamplingParams, tmp_path: Path
) -> None:
    serving = engine(checkpoint(tmp_path, family), dtype)
    assert serving.info.kernels == "deterministic"
    expected = alone(serving, sampling)
    for seed, chunk in enumerate((5, 16, 90, 4096)):
        runs = asked(sampling)
        Schedule(serving, chunk=chunk, seed=seed).complete(runs)
        assert [(run.output, run.logprobs) for run in runs] == expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_cached_beginning_gives_the_same_bits(dtype: str, tmp_path: Path) -> None:
    serving = engine(checkpoint(tmp_path, "llama"), dtype)
    outcomes = []
    for num_cached in (0, 4, 32, 64):
        schedule = Schedule(serving, chunk=4096, seed=num_cached)
        donor, beside = Run(prompt(70)[:64], 1), Run(prompt(30, 1), 3, key=StreamKey("g", 1))
        schedule.step_by([donor, beside], 64)
        run = Run(prompt(70), NUM_TOKENS, GREEDY, key=StreamKey("gateway", 2))
        run.blocks, run.num_computed = donor.blocks[: num_cached // 4], num_cached
        while not run.done:
            schedule.step_by([run], 4096)
        outcomes.append((run.output, run.logprobs))
    assert outcomes.count(outcomes[0]) == len(outcomes)


def test_float32_output_is_still_that_of_generate(llama: str) -> None:
    runs = [Run(prompt(length), 8) for length in LENGTHS]
    Schedule(engine(llama, "float32"), chunk=30, seed=4).complete(runs)
    for run in runs:
        assert run.output == reference_output(llama, run.prompt, 8)


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(96, 64), (70, 33), (768, 512)])
def test_a_products_row_is_the_same_in_any_company(
    num_outputs: int, num_inputs: int, dtype: torch.dtype, num_threads: int
) -> None:
    torch.manual_seed(num_outputs)
    weight = torch.randn(num_outputs, num_inputs).div(num_inputs**0.5).to(dtype)
    bias = torch.randn(num_outputs).to(dtype)
    rows = torch.randn(70, num_inputs).to(dtype)
    residual = torch.randn(70, num_outputs).to(dtype)
    product, gated = Linear(weight, bias), GatedLinear((weight, bias), (weight, None))
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        for each in (product, gated):
            each.take_all_rows()
        whole = product(rows), product.added_to(residual, rows)
        for count in (1, 2, 5, 17, 33, 70):
            some, beside = rows[-count:], residual[-count:]
            assert torch.equal(product(some), whole[0][-count:])
            assert torch.equal(product.added_to(beside, some), whole[1][-count:])
    finally:
        torch.set_num_threads(before)
    exact = rows.double() @ weight.double().T + bias.double()
    assert (whole[0] - exact).abs().max() < (1e-4 if dtype is torch.float32 else 0.05)


@pytest.mark.parametrize(
    ("family", "options", "said"),
    [
        ("granite", {}, "'granite' runs in transformers' modules; it is for llama, mistral"),
        ("llama", {"kernels": "torch"}, "kernels 'torch' have no such pass: leave kernels at"),
        ("llama", {"dtype": "float16"}, "dtype float16: it needs a CPU, float32 or bfloat16"),
        ("llama", {"quantization": "torchao-int8"}, "leave quantization out"),
    ],
)
def test_what_has_no_such_pass_is_refused(
    family: str, options: dict[str, str], said: str, tmp_path: Path
) -> None:
    folder = save_checkpoint(tmp_path, family, hidden_size=64, intermediate_size=96)
    with pytest.raises(HeadwayError, match=f"deterministic cannot be served: .*{said}") as refused:
        load(folder, num_blocks=8, deterministic=True, **options)
    assert refused.value.code is Code.FAILED_PRECONDITION
