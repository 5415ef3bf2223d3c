"""The simulated cluster: real cores, so what holds for them must hold here."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.cluster import Role
from headway.core.scheduler.settings import SchedulerSettings
from headway.sim.cluster import ClusterSpec, SimCluster, SimRequest
from headway.sim.hop_costs import Beside, HopCosts
from headway.sim.host import Host
from headway.sim.kernel import Kernel
from headway.sim.network import NetworkParams
from headway.sim.records import Record
from tests.fakes.sim_clusters import (
    close,
    cluster_of,
    disaggregated,
    instance,
    one_step,
    poisson,
    run,
)


@pytest.mark.parametrize("seed", range(3))
def test_every_request_ends_once_with_all_its_tokens_and_blocks_are_conserved(seed: int) -> None:
    requests = poisson(150, 6.0, seed)
    records, cluster = run(disaggregated(), requests)
    assert sorted(r.request_id for r in records) == sorted(r.request_id for r in requests)
    by_id = {r.request_id: r for r in requests}
    assert all(r.num_tokens == by_id[r.request_id].num_output_tokens for r in records)
    assert all(r.finished for r in records)
    for worker in cluster.workers:
        info = worker.spec.info(worker.worker_id)
        assert all(load.num_free_blocks == info.num_blocks for load in worker.core.loads)
        assert worker.core.num_held == 0


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([2.0, 8.0, 20.0]))
@example(425, 2.0)  # a prompt whose last chunk is a single token
def test_advancing_many_passes_at_once_gives_what_pass_by_pass_gives(
    seed: int, rate: float
) -> None:
    requests = poisson(60, rate, seed)
    spec = disaggregated(report_interval=0.5)
    leaps, cluster = run(spec, requests)
    steps, other = run(one_step(spec), requests)
    close(leaps, steps)
    assert [w.device.num_passes for w in cluster.workers] == [
        w.device.num_passes for w in other.workers
    ]


@given(st.integers(0, 10_000))
@settings(max_examples=5, deadline=None)
def test_lock_stepped_units_advance_alike_in_leaps_and_in_steps(seed: int) -> None:
    instances = ((instance(Role.UNIFIED, num_units=3), 2),)
    requests = poisson(60, 8.0, seed)
    spec = cluster_of(instances, report_interval=0.5)
    close(run(spec, requests)[0], run(one_step(spec), requests)[0])


def test_the_same_requests_give_the_same_bytes() -> None:
    requests = poisson(100, 8.0, 1)
    assert repr(run(disaggregated(), requests)[0]) == repr(run(disaggregated(), requests)[0])


HOPS = HopCosts(gateway=0.004, submit=0.001, dispatch=0.002, report=0.003, token=0.005)


@pytest.mark.parametrize(
    ("network", "hops"),
    [
        (NetworkParams(), 2 * 0.0002),  # gateway to scheduler, scheduler to worker
        (NetworkParams(hops=HOPS), 0.004 + 0.001 + 0.002 + 0.005),
    ],
)
def test_a_lone_request_takes_what_the_cost_model_and_each_hop_say(
    network: NetworkParams, hops: float
) -> None:
    request = SimRequest("r", 1.0, num_prompt_tokens=100, num_output_tokens=3)
    records, _ = run(ClusterSpec(((instance(Role.UNIFIED), 1),), network=network), [request])
    passes = [0.012 + 71e-6 * 100, 0.012 + 1e-4 + 1e-7 * 101, 0.012 + 1e-4 + 1e-7 * 102]
    assert records[0].ttft == pytest.approx(hops + passes[0])
    assert records[0].ttlt == pytest.approx(hops + sum(passes))


def two_on_one_host(hops: HopCosts) -> ClusterSpec:
    """Two instances that take requests by turns."""
    by_turns = SchedulerSettings(dispatch="immediate", packing="round-robin")
    kinds = ((instance(Role.UNIFIED), 2),)
    return ClusterSpec(kinds, scheduler=by_turns, network=NetworkParams(hops=hops))


def test_workers_that_share_a_core_slow_each_other_down() -> None:
    requests = [SimRequest(f"r{n}", 1.0, 100, 3) for n in range(2)]

    def ttlts(cores: int) -> list[float]:
        spec = two_on_one_host(HopCosts(cores=cores))
        return [record.ttlt or 0.0 for record in run(spec, requests)[0]]

    assert ttlts(2) == pytest.approx(ttlts(0))
    apart, together = max(ttlts(0)), max(ttlts(1))
    assert 1.5 * apart < together <= 2 * apart


def test_a_pass_loses_what_its_kind_loses_beside_others() -> None:
    hops = HopCosts(
        cores=2,
        decode_beside=0.1,
        decode_crowded=0.2,
        prefill_beside=0.5,
        prefill_crowded=1.5,
        per_request=0.01,
    )
    assert hops.stretch(Beside(has_prompts=False, num_busy=1)) == 1.0
    assert hops.stretch(Beside(has_prompts=False, num_busy=3)) == pytest.approx(1.3)
    assert hops.stretch(Beside(has_prompts=True, num_busy=4)) == pytest.approx(4.5)
    assert hops.stretch(Beside(has_prompts=True, num_busy=1, requests_per_s=20)) == pytest.approx(
        1.2
    )
    assert replace(hops, cores=0).stretch(Beside(has_prompts=True, num_busy=4)) == 1.0


def test_requests_of_the_last_moments_slow_down_passes_on_a_shared_host() -> None:
    requests = [SimRequest(f"r{n}", 1.0, 100, 1) for n in range(2)]

    def first(per_request: float) -> float:
        hops = HopCosts(cores=1, per_request=per_request)
        spec = ClusterSpec(((instance(Role.UNIFIED), 1),), network=NetworkParams(hops=hops))
        return min(record.ttft or 0.0 for record in run(spec, requests)[0])

    slower = first(0.1) / first(0.0)
    assert 1.5 < slower < 2.1  # two requests within 0.2 s are 10 a second


def test_a_shared_host_takes_from_prompts_what_is_said_of_prompts() -> None:
    """Two instances at once: a prompt beside a prompt, then a decode pass beside another."""
    requests = [SimRequest(f"r{n}", 1.0, 100, 2) for n in range(2)]

    def times(hops: HopCosts) -> tuple[float, float]:
        records = run(two_on_one_host(hops), requests)[0]
        firsts = [record.ttft or 0.0 for record in records]
        return max(firsts), max(record.ttlt or 0.0 for record in records) - max(firsts)

    first, second = times(HopCosts(cores=2))
    slow_prompts = times(HopCosts(cores=2, prefill_beside=1.0))
    assert slow_prompts[0] > 1.5 * first
    slow_decode = times(HopCosts(cores=2, decode_beside=1.0))
    assert slow_decode[0] == pytest.approx(first)
    assert slow_decode[1] > 1.5 * second


def test_a_message_of_a_simulated_cluster_waits_for_a_free_core() -> None:
    requests = [SimRequest("r0", 1.0, 4000, 2), SimRequest("r1", 1.1, 10, 1)]

    def last(wait: float) -> float:
        spec = two_on_one_host(HopCosts(cores=1, wait=wait))
        return {r.request_id: r.ttft or 0.0 for r in run(spec, requests)[0]}["r1"]

    waited = last(0.05) - last(0.0)
    assert waited == pytest.approx(0.1)  # to the scheduler and to its instance, while r0 computes


def test_messages_that_find_no_core_free_wait_and_keep_their_order() -> None:
    kernel, arrived = Kernel(), list[str]()
    num_busy = 2
    host = Host(kernel, HopCosts(cores=2, wait=0.5), None, lambda: num_busy)
    host.after("report", 0.1, lambda: arrived.append(f"first {kernel.now:.1f}"))
    num_busy = 1  # a core is free again
    host.after("report", 0.1, lambda: arrived.append(f"second {kernel.now:.1f}"))
    host.after("submit", 0.1, lambda: arrived.append(f"another hop {kernel.now:.1f}"))
    kernel.run()
    assert arrived == ["another hop 0.1", "first 0.6", "second 0.6"]


def test_the_first_answering_token_is_the_one_after_the_reasoning() -> None:
    request = SimRequest("r", 1.0, 10, num_output_tokens=9, num_reasoning_tokens=4)
    record = run(ClusterSpec(((instance(Role.UNIFIED), 1),)), [request])[0][0]
    tokens = [
        Record("x", 0, 0, 0, 0, [segment]).segments[0]._replace(num_tokens=k + 1).last_at
        for segment in record.segments
        for k in range(segment.num_tokens)
    ]
    assert len(tokens) == 9
    assert tokens == sorted(tokens)
    assert record.first_answer_at == pytest.approx(tokens[4])


def test_requests_survive_the_death_of_any_worker() -> None:
    requests = poisson(80, 8.0, 3)
    records = list[Record]()
    kernel = Kernel()
    cluster = SimCluster(kernel, disaggregated(2, 3), records.append)
    for request in requests:
        cluster.submit(request)
    for at, worker_id in ((2.0, "decode-3"), (4.0, "prefill-1"), (6.0, "decode-4")):
        kernel.at(at, lambda worker_id=worker_id: cluster.kill(worker_id))  # type: ignore[misc]
    kernel.at(7.0, lambda: cluster.start_worker(instance(Role.DECODE)) and None)
    kernel.run(1e6)
    assert len(records) == len(requests)
    assert all(r.finished for r in records)
    by_id = {r.request_id: r for r in requests}
    assert all(r.num_tokens == by_id[r.request_id].num_output_tokens for r in records)


def test_where_kv_is_short_requests_are_preempted_and_still_end() -> None:
    small = instance(Role.UNIFIED, kv_capacity_tokens=3000, chunk_tokens=512)
    requests = [SimRequest(f"r{n}", 0.5 + n / 100, 200, 400) for n in range(12)]
    records, _ = run(ClusterSpec(((small, 1),)), requests)
    assert len(records) == 12
    assert all(r.finished for r in records)


def test_a_policy_by_name_changes_what_happens() -> None:
    requests = poisson(200, 12.0, 2)
    sbs, _ = run(disaggregated(2, 2), requests)
    immediate = SchedulerSettings(dispatch="immediate", packing="round-robin", placement="random")
    with pytest.raises(Exception, match="placement"):
        run(disaggregated(2, 2, scheduler=replace(immediate, placement="nowhere")), requests)
    other, _ = run(
        disaggregated(2, 2, scheduler=replace(immediate, placement="round-robin")), requests
    )
    assert repr(sbs) != repr(other)


def test_a_prefix_that_is_cached_is_not_computed_again() -> None:
    def ttfts(hashes: tuple[int, ...]) -> list[float]:
        requests = [
            SimRequest(f"r{n}", 10.0 * n, 2048, 4, prefix_hashes=hashes or (n,)) for n in range(3)
        ]
        spec = ClusterSpec(((instance(Role.UNIFIED), 1),))
        kernel, records = Kernel(), list[Record]()
        cluster = SimCluster(kernel, spec, records.append)
        cluster.feed(iter(requests))
        kernel.run(100.0)
        return [record.ttft or 0.0 for record in records]

    first, second, third = ttfts((1, 2, 3, 4))
    assert second < 0.25 * first
    assert third == pytest.approx(second)
    assert ttfts(()) == pytest.approx([first] * 3)
