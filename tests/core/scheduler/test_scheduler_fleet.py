"""What the leading scheduler tells the autoscaler of all workers."""

from __future__ import annotations

import math

from headway.cluster import Role, UnitLoad, WorkerInfo
from headway.core.scheduler.core import SchedulerCore
from headway.core.scheduler.events import Elected, WorkerReported
from headway.core.scheduler.fleet import FleetMeter, QueuedLoad
from headway.core.scheduler.instance import Instance
from headway.messages import CancelStream, EndForward, PassWork, Snapshot
from headway.policies.scaling.protocol import PoolLoad, WorkSample
from headway.request import StreamKey
from headway.service_class import ServiceClass, Standing
from tests.fakes.scheduler_text import SchedulerHarness, key, make_info, short_pass

NOBODY = {"m": QueuedLoad(0, 0, 0)}


def worker(
    worker_id: str, role: Role, *, free: int = 100, queued: int = 0, model: str = "m"
) -> Instance:
    info = WorkerInfo(worker_id, "", role, model, 1, 256, 16, 100, 1000, 64)
    instance = Instance(info, 0.1)
    instance.report([UnitLoad(0, queued, 0, 0, free)], now=0.0)
    return instance


def test_workers_are_counted_by_role_without_those_that_drain() -> None:
    decoders = {name: worker(name, Role.DECODE) for name in ("a", "b", "c")}
    decoders["c"].draining = True
    fleet = FleetMeter({**decoders, "p": worker("p", Role.PREFILL)}).read(NOBODY, now=1.0)["m"]
    assert (fleet.prefill.num_ready, fleet.decode.num_ready) == (1, 2)
    assert fleet.unified == PoolLoad(0)


def test_requests_and_tokens_that_wait_count_where_they_wait() -> None:
    prefiller = worker("p", Role.PREFILL, queued=30)
    prefiller.hold(StreamKey("g", 1), 0)
    fleet = FleetMeter({"p": prefiller}).read({"m": QueuedLoad(4, 70, 2)}, now=1.0)["m"]
    assert (fleet.prefill.num_requests, fleet.prefill.backlog_tokens) == (5, 100)
    assert fleet.decode.num_requests == 2


def test_memory_is_the_share_of_all_blocks_in_use() -> None:
    fleet = FleetMeter({n: worker(n, Role.DECODE, free=f) for n, f in (("a", 100), ("b", 50))})
    assert math.isclose(fleet.read(NOBODY, now=1.0)["m"].decode.memory, 0.25)


def test_busy_is_the_share_of_the_time_since_the_last_reading() -> None:
    meter = FleetMeter({name: worker(name, Role.PREFILL) for name in ("a", "b")})
    meter.read(NOBODY, now=1.0)
    for pass_time in (0.25, 0.25, math.nan, -1.0):
        meter.passed("a", pass_time)
    assert math.isclose(meter.read(NOBODY, now=2.0)["m"].prefill.busy, 0.25)
    assert meter.read(NOBODY, now=3.0)["m"].prefill.busy == 0.0


def test_who_decodes_is_busy_though_its_passes_go_unreported() -> None:
    decoders = {name: worker(name, Role.DECODE) for name in ("a", "b")}
    decoders["a"].report([UnitLoad(0, 0, 3, 40, 90)], now=1.0)
    meter = FleetMeter(decoders)
    meter.read(NOBODY, now=1.0)
    assert meter.read(NOBODY, now=2.0)["m"].decode.busy == 0.5


def test_a_leader_that_has_not_heard_of_all_workers_tells_nothing() -> None:
    core = SchedulerCore()
    core.handle(Elected(1, ("w",)), now=0.0)
    assert core.fleets(now=0.1) is None
    info = WorkerInfo("w", "", Role.UNIFIED, "m", 1, 256, 16, 100, 1000, 64)
    core.handle(WorkerReported("w", Snapshot(info, (UnitLoad(0, 0, 0, 0, 100),))), now=0.2)
    fleets = core.fleets(now=0.2)
    assert fleets is not None
    assert fleets["m"].unified.num_ready == 1
    core.handle(WorkerReported("w", EndForward(1, 0.5, (), ())), now=1.0)
    fleets = core.fleets(now=1.2)
    assert fleets is not None
    assert math.isclose(fleets["m"].unified.busy, 0.5)


def test_every_model_has_a_fleet_of_its_own() -> None:
    meter = FleetMeter(
        {
            "a": worker("a", Role.DECODE),
            "b": worker("b", Role.DECODE, model="other"),
            "c": worker("c", Role.PREFILL, model="other"),
        }
    )
    fleets = meter.read({"m": QueuedLoad(0, 0, 3), "asked-for": QueuedLoad(1, 5, 0)}, now=1.0)
    assert list(fleets) == ["asked-for", "m", "other"]
    assert fleets["m"].decode.num_ready == fleets["other"].decode.num_ready == 1
    assert (fleets["m"].decode.num_requests, fleets["other"].decode.num_requests) == (3, 0)
    assert fleets["asked-for"].prefill.backlog_tokens == 5


def test_passes_of_one_stage_are_added_up_until_they_are_read() -> None:
    workers = {"p": worker("p", Role.PREFILL), "d": worker("d", Role.DECODE)}
    workers["c"] = worker("c", Role.CONVERTIBLE)
    meter = FleetMeter(workers)
    prefill, decode = PassWork(1, 0.5, 256), PassWork(2, 0.2, 0, 0, 6, 90)
    for _ in range(2):
        meter.worked(workers["p"], (prefill,))
        meter.worked(workers["d"], (decode,))
    meter.worked(workers["c"], (PassWork(1, 0.5, 64, 0, 3, 30), decode))
    expected = (
        WorkSample("c", "decode", decode),
        WorkSample("d", "decode", decode.plus(decode)),
        WorkSample("p", "prefill", prefill.plus(prefill)),
    )
    assert meter.read(NOBODY, now=1.0)["m"].samples == expected
    assert meter.read(NOBODY, now=2.0)["m"].samples == ()


def test_a_request_on_its_way_counts_once_before_and_after_its_worker_reports_it() -> None:
    instance = worker("d", Role.DECODE)
    first, second = StreamKey("g", 1), StreamKey("g", 2)
    tokens = 3 * instance.info.block_size

    def counted() -> tuple[int, int, int]:
        (unit,) = instance.decode_units()
        return unit.num_requests, unit.kv_tokens, unit.num_free_blocks

    instance.reserve(first, 0, tokens)
    assert counted() == (1, tokens, 97)
    arriving = UnitLoad(0, 0, 1, tokens, 97, num_arriving=1, arriving_tokens=tokens)
    instance.report([arriving], now=1.0)
    assert counted() == (1, tokens, 97)
    instance.reserve(second, 0, 2 * tokens)
    assert counted() == (2, 3 * tokens, 91)
    instance.landed(first)
    running = UnitLoad(0, 0, 2, 3 * tokens, 91, num_arriving=1, arriving_tokens=2 * tokens)
    instance.report([running], now=2.0)
    assert counted() == (2, 3 * tokens, 91)


def test_what_yields_by_its_class_waits_without_asking_for_instances() -> None:
    scheduler = SchedulerHarness(short_pass())
    scheduler.connect(make_info("p"))
    batch = Standing(service=ServiceClass("batch", yields=True))
    scheduler.submit(1)  # its pass is under way: the others wait
    scheduler.submit(2, num_prompt=30)
    scheduler.submit(3, num_prompt=500, standing=batch)
    (pool,) = scheduler.core.status().pools
    assert (pool.num_waiting, pool.backlog_tokens) == (2, 530)
    assert pool.yielding == (1, 500)
    fleets = scheduler.core.fleets(now=scheduler.now)
    assert fleets is not None
    assert fleets["m"].prefill.num_requests == 1 + 1  # the one that runs, and one that waits
    assert fleets["m"].prefill.backlog_tokens == 10 + 30
    scheduler.post(CancelStream(key(3)))
    assert scheduler.core.status().pools[0].yielding == (0, 0)
