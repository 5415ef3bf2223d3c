"""A run of a study is long enough for its longest request, or it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.cluster import Role
from headway.cost.profile import load_profile
from headway.errors import HeadwayError
from headway.presets import PRESETS
from headway.sim.cluster import ClusterSpec, SimRequest
from headway.sim.experiment import Conditions, cluster_spec
from headway.sim.worker import InstanceSpec
from studies import runs, warm
from studies.runs import run
from studies.warm import Residence, require_warm


@pytest.fixture(autouse=True)
def _limit(monkeypatch: pytest.MonkeyPatch, _short_runs: None) -> None:
    monkeypatch.setattr(warm, "NUM_RESIDENCES", 10.0)


def _spec(profile: str, max_running: int = 0) -> ClusterSpec:
    kind = InstanceSpec(Role.UNIFIED, load_profile(profile))
    return cluster_spec(PRESETS["vllm-like"], Conditions([(kind, 1)], max_running=max_running))


def _requests(num: int, seconds: float, *, longest: int) -> list[SimRequest]:
    gap = seconds / (num - 1)
    return [SimRequest(f"r{n}", n * gap, 100, 100 if n else longest) for n in range(num)]


def test_a_request_stays_as_long_as_its_passes_beside_a_half_full_batch() -> None:
    """STAR's figure: 18.23 ms a pass of 22 requests over 90K tokens."""
    spec = _spec("qwen-7b-4090d")
    tokens = 4091 * 2 // 3  # the mean over the passes of equal requests: prompt + half the output
    requests = [SimRequest("r", 0.0, tokens, tokens)]
    assert Residence.on(spec, requests).step == pytest.approx(0.01823, rel=0.01)


def test_few_places_make_shorter_passes() -> None:
    requests = _requests(10, 100.0, longest=100)
    many, few = (Residence.on(_spec("qwen-32b-h100-96", most), requests) for most in (0, 8))
    assert few.step < many.step
    assert few.step == pytest.approx(0.022 + 4 * (8e-5 + 150 * 1e-7))


def test_a_run_shorter_than_ten_residences_is_refused_with_value_limit_and_way_out() -> None:
    spec = _spec("qwen-32b-h100-96")
    requests = _requests(20, 100.0, longest=2000)
    stays = Residence.on(spec, requests).of(requests[0])
    with pytest.raises(HeadwayError) as refused:
        run(spec, requests)
    said = str(refused.value)
    assert "'100 s'" in said
    assert f"{10 * stays:.0f} s" in said
    assert "r0 has 2000 output tokens" in said
    assert f"about {int(20 * stays / 10) + 1} requests instead of 20" in said


def test_a_run_that_is_long_enough_or_of_a_start_runs() -> None:
    spec = _spec("qwen-32b-h100-96")
    require_warm(spec, [])
    assert len(run(spec, _requests(40, 80.0, longest=200)).records) == 40
    crowd = _requests(3, 0.1, longest=200)
    assert len(run(spec, crowd, is_start=True).records) == 3
    with pytest.raises(HeadwayError, match="longest request stays"):
        run(spec, crowd)


def test_a_prefiller_alone_is_measured_by_its_prompts() -> None:
    kind = InstanceSpec(Role.PREFILL, load_profile("qwen-32b-h100-96"))
    spec = cluster_spec(PRESETS["vllm-like"], Conditions([(kind, 1)]))
    requests = [SimRequest("a", 0.0, 4096, 1), SimRequest("b", 60.0, 100, 1)]
    residence = Residence.on(spec, requests)
    assert residence.of(requests[0]) == residence.solo.of(4096, 1)
    require_warm(spec, requests)


def test_studies_make_their_clusters_by_the_runner_alone() -> None:
    folder = Path(runs.__file__).parent
    makers = {
        path.name
        for path in folder.glob("*.py")
        if "SimCluster(" in path.read_text(encoding="utf-8")
    }
    assert makers == {"runs.py"}
