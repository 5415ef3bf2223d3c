"""Failures of a simulated run: who may die, who comes for them, and what they cost."""

from __future__ import annotations

import pytest

from headway.errors import HeadwayError
from headway.presets import PRESETS
from headway.sim.cluster import SimCluster, SimRequest
from headway.sim.experiment import cluster_spec, simulate
from headway.sim.failures import Failure
from headway.sim.scenario import parse_scenario
from tests.fakes.small_scenario import SMALL, dies


def test_an_instance_fails_on_schedule_and_all_requests_still_end() -> None:
    text = SMALL + '[[failures]]\nat = 2.0\ninstance = "unified-1"\nback_after = 1.0\n'
    scenario = parse_scenario(text, "test")
    spec = cluster_spec(PRESETS["vllm-like"], scenario.conditions)
    found = simulate(spec, scenario.workload.requests(1), failures=scenario.failures)
    assert len(found.records) == 40
    assert all(record.finished for record in found.records)
    with pytest.raises(HeadwayError, match="unified-9"):
        simulate(spec, scenario.workload.requests(1), failures=[Failure("unified-9", 2.0)])


def test_whoever_may_be_there_may_die() -> None:
    back = dies("unified-2").replace("1e6", "1.0\nback_after = 0.5")
    late = dies("unified-3", "scheduler").replace("1e6", "3.0")
    text = SMALL.replace("= 512", "= 512\nstart_up = 0.5").replace("[slo]", back)
    scenario = parse_scenario(text.replace("[slo]", late), "test")
    spec = cluster_spec(PRESETS["vllm-like"], scenario.conditions)
    run = simulate(spec, scenario.workload.requests(1), failures=scenario.failures)
    assert all(record.finished for record in run.records)
    gateways = SMALL.replace('name = "small"', "gateways = 3")
    parse_scenario(gateways.replace("[slo]", dies("gateway", "gateway-3")), "test")
    with pytest.raises(HeadwayError, match="a gateway that leaves another"):
        parse_scenario(gateways.replace("[slo]", dies("gateway", "gateway-2", "gateway-3")), "test")


def test_an_autoscaler_orders_instances_of_any_name() -> None:
    text = SMALL.replace("[slo]", dies("decode-99"))
    assert parse_scenario(text, "test", autoscales=True).failures[0].instance == "decode-99"
    assert parse_scenario(text + "[autoscale]\n", "test").failures[0].instance == "decode-99"


def test_gpu_seconds_count_start_ups_and_instances_that_died() -> None:
    scenario = parse_scenario(SMALL, "test")
    spec = cluster_spec(PRESETS["vllm-like"], scenario.conditions)

    def gpu_seconds(*failures: Failure) -> tuple[float, float]:
        run = simulate(spec, scenario.workload.requests(1), failures=failures)
        return run.gpu_seconds, run.ended_at

    found, ended_at = gpu_seconds()
    assert found == pytest.approx(2 * ended_at)
    found, ended_at = gpu_seconds(Failure("unified-1", 2.0))
    assert found == pytest.approx(2 * ended_at - (ended_at - 2.0))
    found, ended_at = gpu_seconds(Failure("unified-1", 2.0, back_after=1.0))
    assert found == pytest.approx(2 * ended_at - 1.0)  # its successor is paid while it starts


def test_passes_of_an_instance_that_died_are_counted() -> None:
    spec = cluster_spec(PRESETS["vllm-like"], parse_scenario(SMALL, "test").conditions)
    seen = list[tuple[int, int]]()

    def look(cluster: SimCluster) -> None:
        for at in (4.9, 5.1):
            kernel = cluster.kernel
            kernel.at(at, lambda: seen.append((cluster.num_passes, len(cluster.workers))))

    requests = [SimRequest(f"r{n}", 0.1 * n, 100, 50) for n in range(40)]
    simulate(spec, requests, failures=[Failure("unified-1", 5.0)], watch=look)
    (before, both), (after, one) = seen
    assert (both, one) == (2, 1)
    assert after >= before > 0
