"""A checkpoint's weights are mapped from its file: one copy for all workers of a host."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from services.worker.engine.model.decoder import Decoder
from services.worker.engine.model.loader import load_model
from services.worker.engine.options import EngineOptions

MODEL = Path(__file__).resolve().parents[3] / "models" / "headway-mini"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def mapped_ranges(name: str) -> list[tuple[int, int]]:
    """Where this process has mapped a file."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(name):
            start, end = line.split()[0].split("-")
            found.append((int(start, 16), int(end, 16)))
    return found


def test_what_is_not_packed_stays_in_the_checkpoints_file() -> None:
    decoder = load_model(str(MODEL), torch.device("cpu"), EngineOptions(1)).decoder
    assert isinstance(decoder, Decoder)
    ranges = mapped_ranges("headway-mini/model.safetensors")
    assert ranges, "the file is mapped, not read"
    layer = decoder._layers[0]
    for weight in (decoder._embedding, decoder._norm, layer.input_norm, layer.down._weight):
        address = weight.data_ptr()
        assert any(start <= address < end for start, end in ranges)
