"""One tenant's flood and the others, on simulated instances."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from operator import attrgetter

import pytest

from bench.floods.offered import FLOODER, Flood
from bench.floods.simulated import FloodedCluster, rows_of
from headway.cluster import Role
from headway.errors import HeadwayError
from headway.presets import PRESETS, find_preset
from headway.service_class import ServiceClass, Standing
from headway.sim.cluster import SimRequest
from headway.sim.experiment import UNLIMITED, Conditions, cluster_spec
from headway.sim.records import Record
from studies.runs import run
from tests.fakes.sim_clusters import cluster_of, instance

SECONDS, PROMPT, OUTPUT = 4.0, 250, 4
BATCH = ServiceClass("batch", ttft=1000.0, floor=0.1, yields=True)


def arrivals(
    name: str, rate: float, standing: Standing, prompt: int = PROMPT
) -> Iterator[SimRequest]:
    rng, now, number = random.Random(name), 0.0, 0
    while (now := now + rng.expovariate(rate)) < SECONDS:
        yield SimRequest(f"{name}-{number}", now, prompt, OUTPUT, standing=standing)
        number += 1


def served(*streams: Iterator[SimRequest]) -> Sequence[Record]:
    requests = sorted((r for stream in streams for r in stream), key=attrgetter("arrival_at"))
    sizes = {"kv_capacity_tokens": 200_000}
    spec = cluster_of(((instance(Role.PREFILL, **sizes), 1), (instance(Role.DECODE, **sizes), 2)))
    return run(spec, requests).records


def p99(records: Sequence[Record], name: str) -> float:
    found = sorted(r.ttft for r in records if r.request_id.startswith(f"{name}-") and r.ttft)
    return found[int(0.99 * len(found))]


def beside_others(*, flood: bool, apart: bool) -> float:
    """P99 TTFT of a tenant beside two others, of which one may flood the cluster tenfold."""
    of = {name: Standing(name if apart else "") for name in ("mine", "x", "y")}
    rate, prompt = (120.0, 1000) if flood else (14.0, PROMPT)
    return p99(
        served(
            arrivals("mine", 8.0, of["mine"]),
            arrivals("x", 14.0, of["x"]),
            arrivals("y", rate, of["y"], prompt),
        ),
        "mine",
    )


def test_beside_a_flood_a_tenant_waits_for_passes_and_not_for_the_flood() -> None:
    before, beside = (beside_others(flood=flood, apart=True) for flood in (False, True))
    assert beside <= 2 * before
    assert beside_others(flood=True, apart=False) > 20 * beside


def test_a_tenant_alone_is_served_as_if_nobody_had_a_name() -> None:
    named, nameless = (
        served(arrivals("x", 40.0, standing), arrivals("y", 12.0, standing, 3000))
        for standing in (Standing("mine"), Standing())
    )
    assert [(r.request_id, r.ttft, r.ttlt) for r in named] == [
        (r.request_id, r.ttft, r.ttlt) for r in nameless
    ]


def test_the_bench_compares_the_others_with_and_without_a_flood() -> None:
    cluster = FloodedCluster(num_prefill=1, num_decode=1)
    quiet, flooded = rows_of(cluster, Flood(seconds=2.0), (8000,), (1, 2))
    assert quiet["num_requests"] == flooded["num_requests"] > 20
    assert flooded["flooder_tokens_per_s"] > 0.5 * quiet["flooder_tokens_per_s"] > 0
    assert quiet["p99_ratio"] == 1.0
    assert 0 < flooded["p50_ttft"] <= flooded["p99_ttft"]


def test_a_flood_of_a_class_that_yields_delays_the_others_less_than_one_of_equals() -> None:
    cluster = FloodedCluster(num_prefill=1, num_decode=1)
    by_class, by_none = (
        rows_of(cluster, Flood(by, seconds=2.0), (300,), (1, 2)) for by in ("class", "none")
    )
    assert by_class[0]["num_requests"] == by_none[0]["num_requests"]
    assert by_class[1]["p99_ttft"] < 0.5 * by_none[1]["p99_ttft"]


def test_the_sides_of_a_flood_have_tenants_or_classes() -> None:
    assert Flood("tenant").standing(FLOODER).tenant == FLOODER
    batch = Flood("class").standing(FLOODER).service
    assert batch is not None
    assert batch.yields
    with pytest.raises(HeadwayError, match="--by is 'both'; it must be one of tenant"):
        Flood("both")


def test_batch_work_fills_what_is_left_and_ends() -> None:
    chat, batch = Standing("a"), Standing("b", 1.0, BATCH)
    alone = p99(served(arrivals("chat", 30.0, chat)), "chat")
    both = served(arrivals("chat", 30.0, chat), arrivals("batch", 20.0, batch, 1000))
    assert p99(both, "chat") <= 3 * alone
    assert all(record.finished for record in both)


UNIFIED, APART = (Role.UNIFIED,), (Role.PREFILL, Role.DECODE)


def p99_beside_outputs(preset: str, roles: Sequence[Role], num_outputs: int) -> float:
    """P99 of another key's 4 tokens, before and beside a burst that claims all blocks."""
    sizes = {"kv_capacity_tokens": 2048, "chunk_tokens": 256}
    instances = [(instance(role, **sizes), 1) for role in roles]
    spec = cluster_spec(find_preset(preset), Conditions(instances, limits=UNLIMITED))
    burst = (
        SimRequest(f"burst-{n}", 0.5, 16, 60, standing=Standing("burst"))
        for n in range(num_outputs)
    )
    mine = (
        SimRequest(f"mine-{n}", 0.02 + 0.11 * n, 12, 4, standing=Standing("mine"))
        for n in range(16)
    )
    asked = sorted([*burst, *mine], key=attrgetter("arrival_at"))
    found = run(spec, asked, is_start=True).records
    return max(r.ttlt for r in found if r.request_id.startswith("mine-") and r.ttlt)


@pytest.mark.parametrize("roles", [UNIFIED, APART], ids=["unified", "apart"])
@pytest.mark.parametrize("preset", PRESETS)
def test_outputs_that_claim_all_blocks_make_nobody_else_wait_for_their_ends(
    preset: str, roles: Sequence[Role]
) -> None:
    alone, beside = (p99_beside_outputs(preset, roles, n) for n in (0, 300))
    assert beside <= 3 * alone
