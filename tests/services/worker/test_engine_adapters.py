"""LoRA adapters beside a model's products: a mixed batch says what merged weights say."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from headway.engine import PassFailure
from headway.errors import Code, HeadwayError
from headway.forward_pass import ForwardPass, PassResult
from services.worker.engine.backend import TorchBackend
from services.worker.engine.cpu.linear import Addition
from services.worker.engine.model.adapter_files import check_adapter
from services.worker.engine.model.adapters import AdapterRows, Product, put_adapters
from services.worker.engine.model.kernel_decoder import KernelDecoder
from services.worker.engine.options import Kernels
from services.worker.engine.queueing import QueueingTorchBackend
from tests.fakes.adapters import ATTENTION, save_adapter
from tests.fakes.engine_rig import (
    FAMILIES,
    Run,
    Schedule,
    load,
    prompt,
    reference_output,
    save_checkpoint,
)


@pytest.fixture(scope="module")
def adapters(checkpoints: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two adapters of each family: every product, and attention alone by another rank."""
    root = tmp_path_factory.mktemp("adapters")
    return {
        family: {
            "all": save_adapter(root / f"{family}-all", folder, seed=1),
            "some": save_adapter(
                root / f"{family}-some", folder, seed=2, rank=3, targets=ATTENTION, use_rslora=True
            ),
        }
        for family, folder in checkpoints.items()
    }


class Launching(QueueingTorchBackend):
    """A backend that computes each pass as one that was queued."""

    def run(self, forward_pass: ForwardPass) -> PassResult:
        return self._result(self._queue(forward_pass, None))


def merged(lora: dict[str, str], adapter: str, base: str) -> str:
    return f"{lora[adapter]}/merged" if adapter else base


def mixed(lengths: tuple[int, ...], num_tokens: int) -> list[Run]:
    return [
        Run(prompt(length), num_tokens, adapter=name)
        for length in lengths
        for name in ("", "all", "some")
    ]


def agree(runs: list[Run], lora: dict[str, str], base: str) -> None:
    for run in runs:
        folder = merged(lora, run.adapter, base)
        assert run.output == reference_output(folder, run.prompt, run.num_tokens), run.adapter
    assert len({tuple(run.output) for run in runs[:3]}) == 3, "the adapters change nothing"


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_mixed_batch_says_what_merged_weights_say(
    checkpoints: dict[str, str], adapters: Any, family: str, kernels: Kernels
) -> None:
    engine = load(*(checkpoints[family],), num_blocks=256, kernels=kernels, lora=adapters[family])
    assert [each.name for each in engine.info.adapters] == ["all", "some"]
    runs = mixed((1, 23, 60), 8)
    Schedule(engine, chunk=17, seed=5).complete(runs)  # chunks of prompts beside decodes
    agree(runs, adapters[family], checkpoints[family])


def test_more_rows_than_the_mlp_computes_at_once(llama: str, adapters: Any) -> None:
    lora = adapters["llama"]
    runs = mixed((300,), 3)
    Schedule(load(llama, num_blocks=128, lora=lora), chunk=4096, seed=1).complete(runs)
    agree(runs, lora, llama)


def test_a_pass_queued_behind_another_keeps_its_adapters(llama: str, adapters: Any) -> None:
    lora = adapters["llama"]
    backend: Any = load(llama, num_blocks=64, lora=lora)
    runs = mixed((11,), 2)
    Schedule(Launching(backend._model, backend._pool), chunk=4096).complete(runs)
    agree(runs, lora, llama)


@pytest.mark.slow
def test_kernels_of_a_gpu_and_recorded_passes(llama: str, adapters: Any) -> None:
    pytest.importorskip("triton")
    lora, replayed = adapters["llama"], []

    def record(run: Any) -> Any:
        def replay() -> torch.Tensor:
            replayed.append(1)
            hidden: torch.Tensor = run()
            return hidden

        return replay

    device = "cuda" if torch.cuda.is_available() else "cpu"
    engine: Any = load(llama, num_blocks=32, kernels="triton", device=device, lora=lora)
    decoder = engine._model.decoder
    assert isinstance(decoder, KernelDecoder)
    with torch.inference_mode():
        decoder.prepare(engine._pool, record, sizes=(4,))
    runs = mixed((9,), 4)
    Schedule(engine, chunk=64, seed=3).complete(runs)
    agree(runs, lora, llama)
    base = Run(prompt(9), 4)
    Schedule(engine, chunk=64).complete([base])
    assert base.output == runs[0].output
    assert replayed, "passes without adapters are still replayed"


@pytest.mark.parametrize("family", ["phi3", "olmo2", "gemma"])
def test_families_in_transformers_modules_take_adapters_too(family: str, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "base", family, hidden_size=64, intermediate_size=96)
    targets = ("qkv_proj", "o_proj", "down_proj") if family == "phi3" else ("q_proj", "up_proj")
    lora = {"all": save_adapter(tmp_path / "all", folder, seed=1, targets=targets)}
    engine = load(folder, num_blocks=64, lora=lora)
    assert engine.info.kernels == "modules"
    runs = [Run(prompt(21), 8, adapter=name) for name in ("", "all")]
    Schedule(engine, chunk=13, seed=3).complete(runs)
    for run in runs:
        assert run.output == reference_output(merged(lora, run.adapter, folder), run.prompt, 8)
    assert runs[0].output != runs[1].output


def test_bfloat16_errs_no_more_than_merged_weights_do(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "base", "llama", initializer_range=0.05)
    lora = {"all": save_adapter(tmp_path / "all", folder, seed=1, size=0.02)}

    def hidden(engine: TorchBackend, adapter: str) -> torch.Tensor:
        run = Run(prompt(40), 1, adapter=adapter, blocks=[0, 1, 2])
        found = engine.run(ForwardPass(1, (run.item(40),), hidden=(0,))).hidden
        assert found is not None
        return torch.from_numpy(found.values).float()

    exact = hidden(load(lora["all"] + "/merged", num_blocks=8), "")
    whole = hidden(load(lora["all"] + "/merged", num_blocks=8, dtype="bfloat16"), "")
    beside = hidden(load(folder, num_blocks=8, dtype="bfloat16", lora=lora), "all")
    assert (beside - exact).norm() < 2 * (whole - exact).norm()


def test_a_request_with_an_unknown_adapter_fails_alone(llama: str, adapters: Any) -> None:
    run = Run(prompt(5), 1, adapter="sql", blocks=[0])
    with pytest.raises(PassFailure, match="its adapter is 'sql'; there are: all, some") as failed:
        load(llama, num_blocks=8, lora=adapters["llama"]).run(ForwardPass(1, (run.item(5),)))
    assert failed.value.keys == (run.key,)


class OneMatrix:
    """A decoder with one matrix; ``meanwhile`` is called while an adapter is put beside it."""

    def __init__(self, meanwhile: Callable[[], object] = int) -> None:
        self.adapter_rows = AdapterRows()
        self._meanwhile = meanwhile

    @property
    def addition(self) -> Addition | None:
        return None

    @addition.setter
    def addition(self, addition: Addition | None) -> None:
        self._meanwhile()

    def products(self) -> Iterator[tuple[str, Product]]:
        yield "layers.0.self_attn.q_proj", Product(self, 0, 4, 4)


def save_one(folder: Path, value: float) -> str:
    prefix = "base_model.model.layers.0.self_attn.q_proj.lora_"
    halves = {f"{prefix}A.weight": (2, 4), f"{prefix}B.weight": (4, 2)}
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "lora_alpha": 1}')
    weights = {name: torch.full(shape, value) for name, shape in halves.items()}
    save_file(weights, folder / "adapter_model.safetensors")
    return str(folder)


def digest_of(decoder: OneMatrix, path: str) -> str:
    (adapter,) = put_adapters(decoder, {"a": path}, torch.float32, torch.device("cpu"))
    return adapter.digest


def test_a_digest_is_of_what_was_read_and_not_of_what_was_written_since(tmp_path: Path) -> None:
    path = save_one(tmp_path, 1.0)
    first = digest_of(OneMatrix(), path)
    assert digest_of(OneMatrix(lambda: save_one(tmp_path, 2.0)), path) == first
    assert digest_of(OneMatrix(), path) != first


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("peft_type", "IA3", "its peft_type is 'IA3'; only 'LORA' is served"),
        ("bias", "all", "its bias is 'all'; only 'none' is served"),
        ("use_dora", True, r"its use_dora is True \(DoRA"),
        ("modules_to_save", ["lm_head"], r"its modules_to_save is \['lm_head'\]"),
        ("target_modules", ["q_proj", "embed_tokens"], "have 'embed_tokens'; no embedding"),
        ("alpha_pattern", {"q_proj": 3}, "its alpha_pattern is"),
        ("init_lora_weights", "pissa_niter_4", "which changes the model's own weights"),
        ("init_lora_weights", "lora_ga", "which changes the model's own weights"),
        ("alora_invocation_tokens", [1, 2], "an adapter that begins within the prompt"),
        ("lora_alpha", "8", "its lora_alpha has to be a number below 1e"),
        ("lora_alpha", 10**400, "its lora_alpha has to be a number below 1e"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    field: str, value: Any, said: str, tmp_path: Path, llama: str
) -> None:
    path = save_adapter(tmp_path, llama, seed=1, targets=("q_proj",), **{field: value})
    with pytest.raises(HeadwayError, match=f"adapter 'a' cannot be served: .*{said}") as refused:
        check_adapter("a", path)
    assert refused.value.code is Code.FAILED_PRECONDITION


def test_a_folder_without_an_adapter_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=r"adapter 'a': '.*' is no folder of a LoRA adapter"):
        check_adapter("a", str(tmp_path / "none"))
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    with pytest.raises(HeadwayError, match=r"it has no adapter_model\.safetensors"):
        check_adapter("a", str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("[" * 100_000)
    with pytest.raises(HeadwayError, match=r"its adapter_config\.json cannot be read"):
        check_adapter("a", str(tmp_path))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layers.1.mlp.q_proj": (4, 48)}, r"adapts 'layers.1.mlp.q_proj', which this model"),
        ({"layers.0.self_attn.q_proj": (4, 47)}, "'layers.0.self_attn.q_proj' is adapted by"),
        ({"layers.0.self_attn.q_proj": (0, 48)}, "is no matrix of numbers"),
        ({"embed_tokens": (4, 48)}, "layers' LoRA matrices alone are served"),
    ],
)
def test_matrices_that_fit_nothing_are_refused_by_name(
    change: dict[str, tuple[int, int]], said: str, llama: str, tmp_path: Path
) -> None:
    path = save_adapter(tmp_path, llama, seed=1, targets=("q_proj",))
    file = tmp_path / "adapter_model.safetensors"
    tensors = load_file(file)
    for name, (rank, inputs) in change.items():
        prefix = f"base_model.model.model.{name}.lora_"
        tensors[f"{prefix}A.weight"] = torch.zeros(rank, inputs)
        tensors[f"{prefix}B.weight"] = torch.zeros(64, rank)
    save_file(tensors, file)
    with pytest.raises(HeadwayError, match=said):
        load(llama, num_blocks=8, lora={"a": path})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("layers.0.self_attn.q_proj.lora_A.default", 0.0, "it has lora_A of .* twice"),
        ("model.layers.0.self_attn.q_proj.lora_A", float("nan"), "weights that are not finite"),
    ],
)
def test_weights_that_are_doubtful_are_refused(
    name: str, value: float, said: str, llama: str, tmp_path: Path
) -> None:
    path = save_adapter(tmp_path, llama, seed=1, targets=("q_proj",))
    file = tmp_path / "adapter_model.safetensors"
    tensors = load_file(file)
    like = tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"]
    tensors[f"base_model.model.{name}.weight"] = torch.full_like(like, value)
    save_file(tensors, file)
    with pytest.raises(HeadwayError, match=said):
        load(llama, num_blocks=8, lora={"a": path})


def test_files_that_are_written_again_change_nothing_that_is_served(
    llama: str, adapters: Any, tmp_path: Path
) -> None:
    folder = shutil.copytree(adapters["llama"]["all"], tmp_path / "all")
    backend = load(llama, num_blocks=32, lora={"all": str(folder)})
    with (folder / "adapter_model.safetensors").open("r+b") as file:
        file.seek(-4096, 2)
        file.write(bytes(4096))
    run = Run(prompt(9), 4, adapter="all")
    Schedule(backend).complete([run])
    expected = reference_output(f"{adapters['llama']['all']}/merged", run.prompt, 4)
    assert run.output == expected


def test_a_deterministic_pass_has_no_adapters(llama: str, adapters: Any) -> None:
    with pytest.raises(HeadwayError, match="a deterministic pass has no adapters"):
        load(llama, num_blocks=8, lora=adapters["llama"], deterministic=True)
