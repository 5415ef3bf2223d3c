"""``headway profile`` of a vLLM that plans its own passes: measured, and predicted."""

from __future__ import annotations

from pathlib import Path

import pytest

from planning.profile.calibration import Calibration
from planning.profile.cases import chosen
from planning.profile.figures import TARGETS
from planning.profile.live import LiveEngine, LiveModel
from planning.profile.loads import Part
from planning.profile.matrix import Matrix, learn
from tests.fakes.local_cluster import MODEL

pytest.importorskip("vllm", reason="vLLM is not installed in this environment: make test-vllm")

pytestmark = [pytest.mark.vllm, pytest.mark.system, pytest.mark.timeout(1800)]


def test_passes_that_vllm_plans_are_measured_and_another_load_predicted(tmp_path: Path) -> None:
    served = LiveModel(MODEL, engine=LiveEngine("vllm-native"))
    parts = (Part(10, 4.0), Part(10, 40.0))
    learnt = learn(served, tmp_path / "learnt", 0, parts=parts, num_lone=8)
    assert learnt.calibration.fitted.num_passes > 20
    assert learnt.calibration.hops.submit > 0
    learnt.calibration.save(tmp_path / "here.toml")
    written = Calibration.load(tmp_path / "here.toml")
    assert written.engine == served.engine
    matrix = Matrix(written, served, tmp_path / "runs", 20, repeats=1, seed=1)
    (report,) = matrix.run(chosen(["vllm-like/2U/50%"], written.engine), lambda _: None)
    (repeat,) = report.repeats
    assert repeat.num_failed == 0
    assert set(repeat.total) == set(TARGETS)
    assert repeat.level > 0
