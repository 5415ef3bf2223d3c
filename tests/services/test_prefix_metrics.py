"""What the leader shows of its index of prefixes, and of requests that wait for their own unit."""

from __future__ import annotations

import json
from dataclasses import replace

from prometheus_client import CollectorRegistry

from headway.blocks import waypoint, waypoint_names
from headway.core.scheduler.events import WorkerReported
from headway.core.scheduler.settings import SchedulerSettings
from headway.cost.costs import Costs
from headway.messages import Admission, CachedPrefixes, Placed, Snapshot
from services.runtime import wire
from services.scheduler.explanations import decision_line
from services.scheduler.metrics import SchedulerMetrics
from tests.fakes.scheduler_text import SchedulerHarness, idle_loads, key, make_info, make_request

STEP = waypoint(1)
NUM_HIT = 32 * STEP
CHUNK = 600
PER_TOKEN = 1e-3


def cluster(*, prefix_hits: bool = True) -> tuple[SchedulerHarness, CollectorRegistry]:
    settings = SchedulerSettings(
        dispatch="sbs-warm",
        prefix_hits=prefix_hits,
        costs=Costs(first_pass=0.1, prefill_per_token=PER_TOKEN, swap_per_token=1e-5),
    )
    scheduler, registry = SchedulerHarness(settings), CollectorRegistry()
    SchedulerMetrics(scheduler.core.status, registry)
    return scheduler, registry


def connect(scheduler: SchedulerHarness, worker_id: str, *held: CachedPrefixes) -> None:
    info = make_info(worker_id, chunk=CHUNK, blocks=2000, max_len=20_000)
    info = replace(info, num_host_blocks=2000)
    scheduler.infos[worker_id] = info
    snapshot = Snapshot(info, idle_loads(info), prefixes=held)
    scheduler.post(WorkerReported(worker_id, snapshot))


def ask(scheduler: SchedulerHarness, name: int, kind: int = 7, more: int = 1) -> None:
    prompt = (*[kind] * (NUM_HIT + more - 1), name)
    scheduler.post(replace(make_request(name), prompt_token_ids=prompt))


def claim(*kinds: int, in_host: bool = False) -> CachedPrefixes:
    chains = [waypoint_names([kind] * (NUM_HIT + 1)) for kind in kinds]
    names = tuple(name for chain in chains for name in chain)
    numbers = [number for chain in chains for number in range(1, len(chain) + 1)]
    return CachedPrefixes(0, names, numbers, in_host=in_host)


def shown(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"headway_scheduler_{name}", {"model": "m", **labels})


def test_hits_are_counted_by_tier_as_expected_and_as_reported() -> None:
    scheduler, registry = cluster()
    connect(scheduler, "a", claim(7), claim(8, in_host=True))
    names = len(waypoint_names([7] * (NUM_HIT + 1)))
    assert shown(registry, "prefix_names", tier="device") == names
    assert shown(registry, "prefix_names", tier="host") == names
    assert shown(registry, "prefix_claims_total") == 2 * names
    ask(scheduler, 1, 8)
    scheduler.wait(0.2)
    assert shown(registry, "prefix_expected_tokens_total", tier="device") == 0
    assert shown(registry, "prefix_expected_tokens_total", tier="host") == NUM_HIT
    assert shown(registry, "prefix_reported_tokens_total", tier="host") == 0
    scheduler.accept("a")
    admitted = (Admission(key(1), 3 * STEP, 2 * STEP),)
    scheduler.end_forward("a", after=0.1, finished=(1,), admitted=admitted)
    assert shown(registry, "prefix_reported_tokens_total", tier="device") == STEP
    assert shown(registry, "prefix_reported_tokens_total", tier="host") == 2 * STEP
    assert shown(registry, "prefix_false_claims_total") == 1
    assert shown(registry, "prefix_bad_reports_total") == 0


def test_a_report_that_cannot_be_is_counted_and_adds_no_hit() -> None:
    scheduler, registry = cluster()
    connect(scheduler, "a")
    ask(scheduler, 1)
    scheduler.wait(0.2)
    scheduler.accept("a")
    admitted = (Admission(key(1), NUM_HIT + 2),)
    scheduler.end_forward("a", after=0.1, finished=(1,), admitted=admitted)
    assert shown(registry, "prefix_bad_reports_total") == 1
    assert shown(registry, "prefix_reported_tokens_total", tier="device") == 0


def test_without_an_index_there_are_no_figures_of_it() -> None:
    scheduler, registry = cluster(prefix_hits=False)
    connect(scheduler, "a")
    assert shown(registry, "prefix_names", tier="device") is None
    assert shown(registry, "prefix_bad_reports_total") is None


def test_who_waits_for_its_own_unit_is_counted_and_named_until_it_goes() -> None:
    scheduler, registry = cluster()
    connect(scheduler, "a", claim(7))
    connect(scheduler, "b")
    ask(scheduler, 1, more=CHUNK + 20)  # fills a's chunk
    ask(scheduler, 2)
    assert shown(registry, "held_requests") == 1
    picture = scheduler.core.pictures.draw()
    (held,) = picture.held
    assert (held.request_id, held.worker_id, held.unit) == ("r2", "a", 0)
    assert (held.num_hit_tokens, picture.num_held) == (NUM_HIT, 1)
    assert 0 < held.longest_wait <= NUM_HIT * PER_TOKEN
    assert wire.PICTURE.unpack(wire.PICTURE.pack(picture)) == picture
    scheduler.accept("a")
    scheduler.end_forward("a", after=0.1, finished=(1,))
    assert shown(registry, "held_requests") == 0
    assert not scheduler.core.pictures.draw().held


def test_a_gateway_is_told_that_a_request_went_to_its_own_unit() -> None:
    scheduler, _ = cluster()
    connect(scheduler, "a", claim(7))
    connect(scheduler, "b")
    ask(scheduler, 1)
    ask(scheduler, 2, 8)
    scheduler.wait(0.2)
    reasons = {each.key.stream_id: each.reason for each in scheduler.answers(Placed)}
    assert reasons[1].endswith(", own unit")
    assert "own" not in reasons[2]


def test_a_decision_says_what_lies_in_host_memory_and_how_long_its_request_may_wait() -> None:
    scheduler, _ = cluster()
    connect(scheduler, "a", claim(7, in_host=True))
    connect(scheduler, "b")
    ask(scheduler, 1)
    lines = [json.loads(decision_line(each)) for each in scheduler.decisions()]
    (chosen,) = [each for line in lines for each in line["chosen"]]
    reason = chosen[4]
    assert (reason["hit_tokens"], reason["host_tokens"]) == (NUM_HIT, NUM_HIT)
    assert reason["wait"] == 0.0
    assert 0 < reason["longest_wait"] <= NUM_HIT * PER_TOKEN
