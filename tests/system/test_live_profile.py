"""``headway profile`` on real clusters: measured, written, read back, predicted, compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli import up
from planning.profile import matrix as of_matrix
from planning.profile.calibration import Calibration
from planning.profile.cases import chosen
from planning.profile.figures import TARGETS
from planning.profile.live import LiveModel
from planning.profile.loads import Part
from planning.profile.matrix import Matrix, learn
from services.local.refusals import refuse_wrong_configurations, refuse_wrong_scaling
from tests.fakes.local_cluster import MODEL

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_machine_is_measured_and_another_load_of_it_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_matrix, "_NUM_CROWD", 40)
    parts = (Part(10, 4.0), Part(10, 40.0))
    learnt = learn(
        LiveModel(MODEL), tmp_path / "learnt", 0, parts=parts, side_by_side=parts, num_lone=8
    )
    found = learnt.calibration
    assert found.hops.submit > 0
    assert found.hops.cores > 0
    assert found.hops.wait < 1.0
    assert found.worker_latency > 0
    assert found.fitted.num_passes > 20
    assert len(learnt.levels) == 3
    assert min(learnt.levels) > 0
    found.save(tmp_path / "here.toml")
    written = Calibration.load(tmp_path / "here.toml")
    assert 0 < written.profile.start_up < 300
    assert (written.profile.network_tokens_per_s or 0) > 0
    options = up.parse(
        ["--autoscale", "--preset", "tokenscale", "--profile", str(tmp_path / "here.toml")]
    )
    refuse_wrong_scaling(options)
    refuse_wrong_configurations(options)
    matrix = Matrix(written, LiveModel(MODEL), tmp_path / "runs", 20, repeats=1, seed=1)
    said: list[str] = []
    cases = chosen(["vllm-like/1P1D/100%"])
    (report,) = matrix.run(cases, said.append)
    (repeat,) = report.repeats
    assert repeat.num_failed == 0
    assert set(repeat.structure) == set(repeat.total) == set(TARGETS)
    assert repeat.level > 0
    (again,) = matrix.run(cases, said.append)  # from what was kept
    assert again == report
