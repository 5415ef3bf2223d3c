"""The decoder on Triton's kernels, interpreted where there is no GPU, against ``generate()``."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
import torch

triton = pytest.importorskip("triton")


from headway.errors import HeadwayError  # noqa: E402
from services.worker.engine.backend import TorchBackend  # noqa: E402
from services.worker.engine.gpu.cuda_graphs import Run  # noqa: E402
from services.worker.engine.model.kernel_decoder import KernelDecoder  # noqa: E402
from tests.fakes import engine_rig  # noqa: E402
from tests.fakes.engine_rig import (  # noqa: E402
    FAMILIES,
    Schedule,
    load,
    prompt,
    reference_output,
)

pytestmark = pytest.mark.slow

INTERPRETED = triton.knobs.runtime.interpret
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("kernels need a GPU or TRITON_INTERPRET=1", allow_module_level=True)


def engine(folder: str, kernels: str = "triton") -> TorchBackend:
    device = "cpu" if INTERPRETED else "cuda"
    return load(folder, num_blocks=32, block_size=16, device=device, kernels=kernels)


@pytest.mark.parametrize("family", FAMILIES)
def test_any_schedule_gives_what_generate_gives(checkpoints: dict[str, str], family: str) -> None:
    folder = checkpoints[family]
    prompts = [prompt(37), prompt(5, seed=1), prompt(18, seed=2)]
    runs = [engine_rig.Run(tokens, 4) for tokens in prompts]
    outputs = Schedule(engine(folder), chunk=24, seed=1).complete(runs)
    assert outputs == [reference_output(folder, tokens, 4) for tokens in prompts]


def test_recorded_decode_passes_give_what_generate_gives(llama: str) -> None:
    replayed: list[int] = []

    def record(run: Run) -> Run:
        def replay() -> torch.Tensor:
            hidden = run()
            replayed.append(len(hidden))
            return hidden

        return replay

    backend = engine(llama)
    decoder = backend._model.decoder
    assert isinstance(decoder, KernelDecoder)
    with torch.inference_mode():
        decoder.prepare(backend._pool, record, sizes=(2, 4))
    prompts = [prompt(9, seed=n) for n in range(3)]
    outputs = Schedule(backend, seed=3).complete([engine_rig.Run(tokens, 5) for tokens in prompts])
    assert outputs == [reference_output(llama, tokens, 5) for tokens in prompts]
    assert set(replayed) == {2, 4}  # three rows and a padding row, too


def flash_stand_in(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_q: int,
    seqused_k: torch.Tensor,
    page_table: torch.Tensor,
    softmax_scale: float,
    causal: bool,
) -> tuple[torch.Tensor, None]:
    """Compute what flash-attn-4 documents: pages read whole, hidden scores times their values."""
    assert causal
    assert page_table.dtype == seqused_k.dtype == cu_seqlens_q.dtype == torch.int32
    assert page_table.shape[0] == len(seqused_k) == len(cu_seqlens_q) - 1
    size, repeats = keys.shape[1], query.shape[1] // keys.shape[2]
    output, edges = torch.empty_like(query), cu_seqlens_q.tolist()
    for n, length in enumerate(seqused_k.tolist()):
        first, stop = edges[n], edges[n + 1]
        assert 0 < stop - first <= max_seqlen_q
        pages = page_table[n, : -(-length // size)].long()
        k, v = (
            plane[pages].flatten(0, 1).repeat_interleave(repeats, 1) for plane in (keys, values)
        )
        scores = torch.einsum("rhd,thd->hrt", query[first:stop], k) * softmax_scale
        last = torch.arange(length - (stop - first), length)
        scores = scores.masked_fill(torch.arange(len(k)) > last[:, None], float("-inf"))
        output[first:stop] = torch.einsum("hrt,thd->rhd", scores.softmax(-1), v)
    return output, None


@pytest.mark.skipif(not INTERPRETED, reason="the library itself runs on a GPU")
def test_another_backend_attends_to_prompts_over_the_same_pool(
    llama: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, package = ModuleType("flash_attn.cute"), ModuleType("flash_attn")
    library.__dict__["flash_attn_varlen_func"] = flash_stand_in
    for module in (package, library):
        module.__spec__ = ModuleSpec(module.__name__, None)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    backend = engine(llama, "triton,flash-attn-4")
    assert backend.info.kernels == "triton,flash-attn-4"
    for plane in (*backend._pool.keys, *backend._pool.values):
        plane.fill_(float("nan"))  # what memory may hold before it is used
    backend.warm_up()
    prompts = [prompt(37), prompt(5, seed=1), prompt(18, seed=2)]
    runs = [engine_rig.Run(tokens, 4) for tokens in prompts]
    outputs = Schedule(backend, chunk=24, seed=1).complete(runs)
    assert outputs == [reference_output(llama, tokens, 4) for tokens in prompts]


@pytest.mark.skipif(not INTERPRETED, reason="the library may be there")
def test_a_backend_for_prompts_that_is_not_installed_is_refused(llama: str) -> None:
    with pytest.raises(HeadwayError, match="need flash-attn-4"):
        engine(llama, "triton,flash-attn-4")
