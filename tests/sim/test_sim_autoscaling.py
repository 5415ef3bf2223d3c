"""The autoscaler's core steers simulated instances."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from headway.cluster import Role
from headway.cost.profile import load_profile
from headway.errors import HeadwayError
from headway.policies.scaling.learned import velocity_sample
from headway.policies.scaling.protocol import Fleet, Rates, Scaling, Targets
from headway.presets import PRESETS
from headway.service_class import ServiceClass, Standing
from headway.sim.autoscaling import SimAutoscaler
from headway.sim.cluster import SimCluster, SimRequest
from headway.sim.experiment import UNLIMITED, Conditions, Run, cluster_spec, simulate
from headway.sim.kernel import Kernel
from headway.sim.records import Record
from headway.sim.spec import Autoscaling
from headway.sim.worker import InstanceSpec
from studies import bursts, tokenscale
from studies.runs import Job
from tests.fakes.sim_clusters import PASS_TIME, instance, poisson

KINDS = {role: instance(role, start_up=2.0) for role in Role}


class Planned(Scaling):
    """Answers what the test says, by time; keeps what it was told."""

    name = "planned"
    loads_live = False

    def __init__(self, *plan: tuple[float, int, int]) -> None:
        self.plan = plan
        self.told: list[tuple[Rates | None, Fleet | None]] = []

    def begin(self, fleet: Fleet) -> None:
        raise AssertionError("the simulator begins with its own instances")

    def targets(self, rates: Rates | None, fleet: Fleet | None = None, *, now: float) -> Targets:
        self.told.append((rates, fleet))
        _, num_prefill, num_decode = max(step for step in self.plan if step[0] <= now)
        return Targets(num_prefill, num_decode, 0, 0, "planned")


def scaled(
    policy: Planned, requests: Sequence[SimRequest], until: float, **settings: bool
) -> tuple[SimCluster, SimAutoscaler, list[Record]]:
    conditions = Conditions(((KINDS[Role.PREFILL], 1), (KINDS[Role.DECODE], 1)))
    kernel, records = Kernel(), list[Record]()
    spec = cluster_spec(PRESETS["vllm-like"], conditions)
    spec = replace(spec, scheduler=replace(spec.scheduler, **settings))  # type: ignore[arg-type]  # fields by name
    cluster = SimCluster(kernel, spec, records.append)
    scaler = SimAutoscaler(cluster, policy, KINDS)
    cluster.feed(iter(requests))
    kernel.run(until)
    return cluster, scaler, records


def roles(cluster: SimCluster) -> list[str]:
    return sorted(worker.spec.role.value for worker in cluster.workers)


def test_instances_are_ordered_once_and_join_when_they_have_started() -> None:
    policy = Planned((0.0, 2, 3))
    cluster, scaler, _ = scaled(policy, [], 2.5)
    assert roles(cluster) == ["decode", "prefill"]
    assert scaler.num_gpus == 5
    cluster.kernel.run(3.5)
    assert roles(cluster) == ["decode"] * 3 + ["prefill"] * 2
    cluster.kernel.run(20.0)
    assert len(cluster.workers) == scaler.num_gpus == 5


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_can_be_autoscaled(preset: str) -> None:
    """A rush on one prefiller and one decoder: more come, and none are paid for when it is over."""
    rush = [SimRequest(f"r{n}", 1.0 + n / 20, 800, 200) for n in range(400)]
    late = [SimRequest(f"late{n}", 80.0 + 8 * n, 800, 200) for n in range(10)]
    profile = replace(load_profile("llama-8b-a100"), start_up=2.0)
    instances = ((InstanceSpec(Role.PREFILL, profile), 1), (InstanceSpec(Role.DECODE, profile), 1))

    def run(autoscaling: Autoscaling | None) -> tuple[float, Run]:
        conditions = Conditions(instances, limits=UNLIMITED, autoscaling=autoscaling)
        found = simulate(cluster_spec(PRESETS[preset], conditions), [*rush, *late])
        assert sum(record.finished for record in found.records) == 410
        return max(record.ttlt or 0.0 for record in found.records), found

    slowest, fixed = run(None)
    assert fixed.gpu_seconds == pytest.approx(2 * fixed.ended_at)
    scaled_slowest, scaled_run = run(Autoscaling(max_prefill=4, max_decode=6))
    assert scaled_slowest < slowest
    assert 2 * scaled_run.ended_at < scaled_run.gpu_seconds < 7 * scaled_run.ended_at


def test_autoscaling_needs_both_pools() -> None:
    conditions = Conditions(((KINDS[Role.UNIFIED], 1),), autoscaling=Autoscaling())
    with pytest.raises(HeadwayError, match="no prefill"):
        simulate(cluster_spec(PRESETS["tokenscale"], conditions), poisson(2, 1.0, 1))


def test_a_pool_shrinks_by_draining_and_no_request_is_lost() -> None:
    requests = poisson(60, 8.0, 1)
    policy = Planned((0.0, 2, 3), (8.0, 1, 1))
    cluster, _, records = scaled(policy, requests, 200.0)
    assert roles(cluster) == ["decode", "prefill"]
    assert len(records) == 60
    assert all(record.finished for record in records)


def test_a_decoder_that_drains_is_gone_long_before_its_requests_end() -> None:
    requests = [SimRequest(f"r{n}", 5.0 + n / 100, 200, 2000) for n in range(6)]
    policy = Planned((0.0, 1, 2), (10.0, 1, 1))
    cluster, _, records = scaled(policy, requests, 12.0)
    assert roles(cluster) == ["decode", "prefill"]
    assert records == []  # all of them still run, on one decoder
    assert cluster.scheduler_core.status().counters.num_relocations == 3
    cluster.kernel.run(500.0)
    assert len(records) == 6
    assert all(record.finished and record.num_tokens == 2000 for record in records)


def test_prompts_that_a_prefiller_has_not_begun_go_to_another_one_when_it_drains() -> None:
    requests = [SimRequest(f"r{n}", 5.0, 4000, 5) for n in range(40)]
    policy = Planned((0.0, 2, 1), (6.0, 1, 1))
    cluster, _, records = scaled(policy, requests, 300.0)
    assert roles(cluster) == ["decode", "prefill"]
    assert len(records) == 40
    assert all(record.finished for record in records)


def test_the_policy_is_told_what_the_passes_were_made_of() -> None:
    policy = Planned((0.0, 1, 1))
    scaled(policy, poisson(60, 10.0, 2), 5.5, measures_work=True)
    samples = [s for _, fleet in policy.told if fleet is not None for s in fleet.samples]
    assert {sample.stage for sample in samples} == {"prefill", "decode"}
    for sample in samples:
        found = velocity_sample(sample, PASS_TIME)
        assert found.measured_tokens_per_s == pytest.approx(found.profiled_tokens_per_s, rel=1e-6)


def test_gpu_seconds_count_from_the_order() -> None:
    _, scaler, _ = scaled(Planned((0.0, 2, 1)), [], 11.0)
    assert scaler.gpu_seconds == pytest.approx(2 * 1 + 3 * 10, abs=1.5)


def test_the_policy_is_told_of_traffic_and_of_the_fleet() -> None:
    policy = Planned((0.0, 1, 1))
    scaled(policy, poisson(60, 10.0, 2), 5.5)
    rates, fleet = policy.told[-1]
    assert rates is not None
    assert fleet is not None
    assert 3 <= rates.requests_per_s <= 25
    assert sum(rates.bucket_tokens_per_s) > rates.input_tokens_per_s
    assert rates.output_tokens_per_s > 0  # produced in that time, as the live gateways count
    assert rates.burst_tokens_per_s is None
    assert (fleet.prefill.num_ready, fleet.decode.num_ready) == (1, 1)
    assert 0 < fleet.decode.busy <= 1
    assert 0 < fleet.decode.memory < 1


def test_bursts_come_at_the_mean_rate_and_are_the_same_for_a_seed() -> None:
    first = list(bursts.arrivals(1))
    assert first == list(bursts.arrivals(1))
    rates = [len(list(bursts.arrivals(seed))) / bursts.SECONDS for seed in range(6)]
    assert sum(rates) / 6 == pytest.approx(bursts.WORKLOADS[bursts.MAIN].rate, rel=0.15)


def test_tokenscale_loses_no_request_and_keeps_more_slos_than_request_counts() -> None:
    ours, theirs = (
        tokenscale.measure(Job(bursts.MAIN, system, 0.85, 1))
        for system in ("tokenscale", "distserve")
    )
    assert ours["lost"] == theirs["lost"] == 0
    assert ours["attainment"] > theirs["attainment"]


def test_a_predictor_names_the_right_bucket_as_often_as_it_is_accurate() -> None:
    profile = KINDS[Role.DECODE].profile
    requests = [SimRequest(f"r{n}", 0.0, 300, 360) for n in range(2000)]
    told = [bursts.predicted(0.85, profile, 1, request) for request in requests]
    assert told.count(350) / len(told) == pytest.approx(0.85, abs=0.03)
    assert set(told) == {100, 350, 610}
    assert told == [bursts.predicted(0.85, profile, 1, request) for request in requests]


def test_the_rates_count_what_a_predictor_tells() -> None:
    policy = Planned((0.0, 1, 1))
    conditions = Conditions(((KINDS[Role.PREFILL], 1), (KINDS[Role.DECODE], 1)))
    kernel = Kernel()
    cluster = SimCluster(kernel, cluster_spec(PRESETS["vllm-like"], conditions), lambda _: None)
    SimAutoscaler(cluster, policy, KINDS, predict=lambda _: 610)
    cluster.feed(iter(poisson(60, 10.0, 2)))
    kernel.run(5.5)
    rates, _ = policy.told[-1]
    assert rates is not None
    assert sum(rates.bucket_tokens_per_s) == pytest.approx(
        rates.input_tokens_per_s + 610 * rates.requests_per_s
    )


def test_requests_that_yield_by_their_class_start_no_instances() -> None:
    """As at a live gateway: they are served by the instances that there are."""
    batch = Standing(service=ServiceClass("batch", yields=True))
    steady = [SimRequest(f"r{n}", 1.0 + n / 5, 800, 100, standing=batch) for n in range(100)]
    profile = replace(load_profile("llama-8b-a100"), start_up=2.0)
    instances = ((InstanceSpec(Role.PREFILL, profile), 1), (InstanceSpec(Role.DECODE, profile), 1))
    bounds = Autoscaling(max_prefill=4, max_decode=6)
    params = {"scaling": {"convertibles": False, "target_utilisation": 0.1}}
    conditions = Conditions(instances, limits=UNLIMITED, params=params, autoscaling=bounds)
    spec = cluster_spec(PRESETS["tokenscale"], conditions)

    def scaled_to(requests: Sequence[SimRequest]) -> float:
        run = simulate(spec, requests)
        assert all(record.finished for record in run.records)
        return run.gpu_seconds / run.ended_at

    assert scaled_to([replace(request, standing=Standing()) for request in steady]) > 2.5
    assert scaled_to(steady) == pytest.approx(2.0)


def test_one_policy_may_size_prefillers_and_another_decoders() -> None:
    mixed = tokenscale.Mixed(Planned((0.0, 5, 1)), Planned((0.0, 1, 7)))
    targets = mixed.targets(None, now=0.0)
    assert (targets.num_prefill, targets.num_decode) == (5, 7)


def test_a_workload_without_its_traces_is_named_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(bursts.DATA_VARIABLE, str(tmp_path))
    assert not any(bursts.WORKLOADS[name].traces for name in tokenscale.swept())
    assert "Azure code is left out" in capsys.readouterr().err


def test_a_window_of_a_trace_comes_at_the_rate_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(bursts.DATA_VARIABLE, str(tmp_path))
    with gzip.open(tmp_path / "azure_llm_2023_conv.csv.gz", "wt") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for second in range(3600):
            minute, rest = divmod(second, 60)
            file.write(f"2023-11-16 18:{minute:02d}:{rest:02d}.0000000,100,20\n")
    found = list(bursts.arrivals(3, bursts.BurstWorkload("test", rate=4.0, traces=("conv",))))
    assert len(found) == pytest.approx(4.0 * bursts.SECONDS, rel=0.05)
    assert found[0].num_prompt_tokens == 100
    assert found == sorted(found, key=lambda request: request.arrival_at)
