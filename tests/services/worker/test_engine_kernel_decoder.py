"""The decoder on Triton's kernels, interpreted where there is no GPU, against ``generate()``."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton")

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


def engine(folder: str) -> TorchBackend:
    device = "cpu" if INTERPRETED else "cuda"
    return load(folder, num_blocks=32, block_size=16, device=device, kernels="triton")


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
        decoder.prepare(backend._pool, record, limit=4)
    prompts = [prompt(9, seed=n) for n in range(3)]
    outputs = Schedule(backend, seed=3).complete([engine_rig.Run(tokens, 5) for tokens in prompts])
    assert outputs == [reference_output(llama, tokens, 5) for tokens in prompts]
    assert set(replayed) == {2, 4}  # three rows and a padding row, too
