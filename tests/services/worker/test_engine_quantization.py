"""Weights in fewer bits, by transformers and the libraries that it works with."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import HeadwayError
from services.worker.engine.model.quantization import SCHEMES
from tests.fakes.engine_rig import Run, Schedule, load, reference_output

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
