"""The greatest logit by way of 8-bit codes is the one that the whole product gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headway.request import StreamKey
from services.worker.engine.backend import TorchBackend
from services.worker.engine.cpu.screened_head import MIN_TOKENS, MOST_ROWS, ScreenedHead
from services.worker.engine.sampler import greatest
from tests.fakes.engine_rig import Run, Schedule, prompt, save_checkpoint

SIZE = 64


def weights(kind: str = "even", seed: int = 0) -> torch.Tensor:
    """(vocabulary, size): all alike, or a few rows or columns much greater."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(MIN_TOKENS, SIZE, generator=generator)
    if kind == "rows":
        weight[::500] *= 30
    elif kind == "columns":
        weight[:, 3] *= 5
    elif kind == "twins":
        weight[1000:2000] = weight[:1000]
    return weight.bfloat16()


def states(count: int, kind: str = "even", seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, SIZE, generator=generator)
    if kind == "columns":
        rows[:, 5] *= 60
    return rows.bfloat16()


needs_codes = pytest.mark.skipif(
    not ScreenedHead.serves(weights()), reason="this processor multiplies no 8-bit integers"
)


def whole(weight: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return greatest((rows.float() @ weight.float().t()).bfloat16())[1]


@needs_codes
@pytest.mark.parametrize("kind", ["even", "rows", "columns", "twins"])
@pytest.mark.parametrize("outliers", ["even", "columns"])
def test_the_token_is_that_of_the_whole_product(kind: str, outliers: str) -> None:
    weight = weights(kind)
    head = ScreenedHead(weight)
    for seed in range(12):
        rows = states(1 + seed % MOST_ROWS, outliers, seed)
        found = head.greatest(rows)
        assert found is not None
        assert found.tolist() == whole(weight, rows).tolist()


@needs_codes
def test_every_token_can_be_the_greatest() -> None:
    weight = weights()
    head = ScreenedHead(weight)
    for first in (0, 127, 128, MIN_TOKENS - 4):
        rows = weight[first : first + 4]
        found = head.greatest(rows)
        assert found is not None
        assert found.tolist() == whole(weight, rows).tolist() == list(range(first, first + 4))


@needs_codes
def test_what_it_cannot_tell_is_left_to_the_whole_product() -> None:
    head = ScreenedHead(weights())
    assert head.greatest(states(MOST_ROWS + 1)) is None
    rows = states(2)
    rows[1, 7] = torch.nan
    assert head.greatest(rows) is None
    assert head.greatest(torch.zeros(1, SIZE, dtype=torch.bfloat16)) is None, "all are equal"


def test_other_heads_are_not_screened() -> None:
    weight = weights()
    assert not ScreenedHead.serves(weight.float())
    assert not ScreenedHead.serves(weight[: MIN_TOKENS // 2])
    assert not ScreenedHead.serves(weight[:-1])
    weight[5, 5] = torch.inf
    assert not ScreenedHead.serves(weight)


@needs_codes
@pytest.mark.parametrize("count", [1, 3, MOST_ROWS + 1])
def test_a_backend_draws_the_same_tokens_with_it_and_without(tmp_path: Path, count: int) -> None:
    folder = save_checkpoint(
        tmp_path / "model", "qwen2", vocab_size=MIN_TOKENS, tie_word_embeddings=True
    )
    engine = TorchBackend.load(folder, num_blocks=64, dtype="bfloat16")
    assert engine._model.screen is not None
    plain = TorchBackend(replace(engine._model, screen=None), engine._pool)
    outputs = []
    for each in (engine, plain):
        runs = [Run(prompt(9, n), 8, key=StreamKey("g", n)) for n in range(count)]
        outputs.append(Schedule(each).complete(runs))
    assert outputs[0] == outputs[1]


def test_a_head_with_weights_of_its_own_is_not_screened(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "model", "qwen2", vocab_size=MIN_TOKENS)
    engine = TorchBackend.load(folder, num_blocks=4, dtype="bfloat16")
    assert engine._model.screen is None
