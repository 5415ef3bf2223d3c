"""A GPU's blocks and memory, where several workers use one card. No card is needed to choose."""

from __future__ import annotations

import pytest
import torch

from headway.engine import ModelSize
from services.worker.config import WorkerConfig
from services.worker.engine.kv.memory import available_bytes
from services.worker.loading import blocks_per_unit

GIB = 2**30


def test_blocks_are_larger_on_a_gpu_and_what_is_asked_for_anywhere() -> None:
    assert WorkerConfig(device="cpu").tokens_per_block == 16
    assert WorkerConfig(device="cuda:1").tokens_per_block == 64
    assert WorkerConfig(device="cuda", block_size=16).tokens_per_block == 16


def test_a_pool_has_as_many_tokens_whatever_its_blocks() -> None:
    size = ModelSize(kv_bytes_per_token=2**17, max_model_len=8192, free_bytes=100 * GIB)
    small, large = (
        blocks_per_unit(WorkerConfig(device="cuda", kv_cache_gib=16, block_size=n), size)
        for n in (16, 64)
    )
    assert 16 * small == 64 * large == 16 * GIB // 2**17


@pytest.mark.parametrize(
    ("free", "own", "share", "expected"),
    [
        (120, 16, 1.0, 120),  # alone: all that is free
        (104, 16, 0.5, 54),  # a half of 140, less its own weights
        (140, 0, 0.5, 70),  # the other has not loaded yet: its half stays free
        (30, 16, 0.5, 30),  # others took more than their share
        (10, 80, 0.5, 0),
    ],
)
def test_a_worker_takes_its_share_of_a_card_however_early_it_looks(
    monkeypatch: pytest.MonkeyPatch, free: int, own: int, share: float, expected: int
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free * GIB, 140 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: own * GIB)
    assert available_bytes(torch.device("cuda"), share) == expected * GIB
