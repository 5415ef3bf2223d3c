"""Decisions become instances, over real gRPC, a real store and an actuator of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import grpc
import pytest
from prometheus_client import CollectorRegistry

from headway.core.autoscaler.starts import InstanceStart, StartsReport
from headway.errors import Code, HeadwayError
from protos import autoscaler_pb2, autoscaler_pb2_grpc
from services.autoscaler.actuators import Actuator
from services.autoscaler.config import AutoscalerConfig
from services.autoscaler.service import AutoscalerService
from services.autoscaler.start_metrics import StartMetrics
from services.runtime.service import Runtime
from services.runtime.store import Store
from tests.fakes.autoscaler_service import asked


class Books(Actuator):
    """An actuator that does what it is told at once, unless it is away."""

    name = "books"

    def __init__(self, **replicas: int) -> None:
        self.replicas = replicas
        self.is_away = False
        self.num_calls = 0
        self.newest_starts: StartsReport | None = None
        self.num_changeable = 0
        self.num_changed = 0

    async def ordered(self) -> Mapping[str, int]:
        if self.is_away:
            raise HeadwayError(Code.UNAVAILABLE, "away")
        return dict(self.replicas)

    async def starts(self) -> StartsReport | None:
        return self.newest_starts

    async def scale(self, role: str, num_instances: int) -> None:
        self.num_calls += 1
        self.replicas[role] = num_instances

    async def change_role(self, source: str, target: str, num_instances: int) -> int:
        number = min(num_instances, self.num_changeable)
        self.num_changed += number
        self.replicas[source] -= number
        self.replicas[target] += number
        return number

    async def close(self) -> None:
        pass


@asynccontextmanager
async def steered(
    config: AutoscalerConfig, books: Books
) -> AsyncIterator[tuple[AutoscalerService, autoscaler_pb2_grpc.AutoscalerAsyncStub]]:
    async def make(runtime: Runtime[AutoscalerConfig]) -> AutoscalerService:
        service = AutoscalerService(runtime, books)
        runtime.server.add(service)
        return service

    async with asked(config, make) as found:
        yield found


async def until(holds: Callable[[], Awaitable[bool] | bool]) -> None:
    async with asyncio.timeout(20):
        while not (found := holds()) or not (isinstance(found, bool) or await found):
            await asyncio.sleep(0.01)


def blitzscale(store_url: str, cluster: str, **more: object) -> AutoscalerConfig:
    """Seven requests a prefiller, 45 a decoder; no quiet period."""
    options = {"interval": 0.02, "scale_down_delay": 0.0, **more}
    return AutoscalerConfig(
        store=store_url,
        cluster=cluster,
        policy="scaling=blitzscale",
        set="scaling.window=0.1",
        **options,  # type: ignore[arg-type]  # any option
    )


def fleet(num_prefill: int, num_requests: int) -> autoscaler_pb2.FleetReport:
    prefill = autoscaler_pb2.PoolLoad(num_ready=num_prefill, num_requests=num_requests)
    return autoscaler_pb2.FleetReport(prefill=prefill, decode=autoscaler_pb2.PoolLoad(num_ready=1))


async def test_a_load_makes_instances_and_its_end_takes_them_away(
    store_url: str, cluster: str
) -> None:
    books = Books(prefill=1, decode=1)
    config = blitzscale(store_url, cluster)
    async with steered(config, books) as (_, stub):
        await stub.ReportFleet(fleet(1, 20))
        await until(lambda: books.replicas["prefill"] == 3)
        await stub.ReportFleet(fleet(3, 0))
        await until(lambda: books.replicas["prefill"] == 1)
        assert books.replicas["decode"] == 1


@pytest.mark.parametrize(("change_roles", "num_changed"), [(True, 1), (False, 0)])
async def test_a_worker_of_a_pool_that_shrinks_serves_the_one_that_grows(
    store_url: str, cluster: str, change_roles: bool, num_changed: int
) -> None:
    books = Books(prefill=3, decode=1)
    books.num_changeable = 1
    options = {"num_prefill": 1, "num_decode": 3, "change_roles": change_roles}
    config = AutoscalerConfig(store=store_url, cluster=cluster, interval=0.02, **options)  # type: ignore[arg-type]  # options by name
    async with steered(config, books):
        await until(lambda: books.replicas == {"prefill": 1, "decode": 3})
    assert books.num_changed == num_changed
    assert books.num_calls == 2  # what could not change is drained and started


async def test_how_long_starts_took_is_told_to_the_policy(store_url: str, cluster: str) -> None:
    books = Books(prefill=1, decode=1)
    books.newest_starts = StartsReport([InstanceStart("decode-2", "decode", 3.5)])
    config = blitzscale(store_url, cluster)
    async with steered(config, books) as (service, stub):
        await stub.ReportFleet(fleet(1, 0))

        def is_told() -> bool:
            newest = service.decisions.newest
            told = newest.fleet.start_up if newest is not None and newest.fleet else None
            return told is not None and told.seconds == 3.5

        await until(is_told)


def test_starts_are_metrics_by_role_and_warmth() -> None:
    registry = CollectorRegistry()
    starts = [InstanceStart("a", "decode", 3.5), InstanceStart("b", "decode", 0.2, warm=True)]
    StartMetrics(registry).add(StartsReport(starts, num_standby=2))
    name, labels = "headway_autoscaler_start_up_seconds_sum", {"role": "decode", "warm": "true"}
    assert registry.get_sample_value(name, labels) == 0.2
    assert registry.get_sample_value("headway_autoscaler_standby_instances") == 2


async def test_a_role_that_the_actuator_does_not_have_is_left_alone(
    store_url: str, cluster: str
) -> None:
    books = Books(prefill=1)
    async with steered(blitzscale(store_url, cluster), books) as (_, stub):
        await stub.ReportFleet(fleet(1, 20))
        await until(lambda: books.replicas["prefill"] == 3)
        assert set(books.replicas) == {"prefill"}


async def test_an_actuator_that_was_away_is_told_when_it_is_back(
    store_url: str, cluster: str
) -> None:
    books = Books(prefill=1)
    async with steered(blitzscale(store_url, cluster), books) as (service, stub):
        books.is_away = True
        await stub.ReportFleet(fleet(1, 20))

        def is_decided() -> bool:
            newest = service.decisions.newest
            return newest is not None and newest.targets.num_prefill == 3

        await until(is_decided)
        assert books.replicas["prefill"] == 1
        books.is_away = False
        await until(lambda: books.replicas["prefill"] == 3)


async def test_somebody_elses_change_is_undone(store_url: str, cluster: str) -> None:
    books = Books(prefill=2)
    config = AutoscalerConfig(store=store_url, cluster=cluster, num_prefill=2, interval=0.02)
    async with steered(config, books):
        books.replicas["prefill"] = 7
        await until(lambda: books.replicas["prefill"] == 2)


async def test_an_autoscaler_that_comes_back_takes_nothing_away_before_it_knows(
    store_url: str, cluster: str
) -> None:
    config = blitzscale(store_url, cluster)
    books = Books(prefill=4, decode=5)
    async with steered(config, books) as (service, _):
        await until(lambda: len(service.decisions.last(0)) > 3)
        assert books.replicas == {"prefill": 4, "decode": 5}
        assert books.num_calls == 0


async def test_without_an_actuator_it_begins_with_what_it_wanted_before(
    store_url: str, cluster: str, store: Store
) -> None:
    config = blitzscale(store_url, cluster, scale_down_delay=60.0)
    async with steered(config, Books()) as (service, stub):
        await stub.ReportFleet(fleet(1, 20))

        async def is_published() -> bool:
            return (await store.read_targets() or {}).get("num_prefill") == 3

        await until(is_published)
    async with steered(config, Books()) as (service, _):
        await until(lambda: len(service.decisions.last(0)) > 1)
        assert {d.targets.num_prefill for d in service.decisions.last(0)} == {3}


async def test_decisions_are_told_with_their_figures_newest_last(
    store_url: str, cluster: str
) -> None:
    config = blitzscale(store_url, cluster, num_decisions=4)
    async with steered(config, Books()) as (service, stub):
        await stub.ReportRates(autoscaler_pb2.RateReport(gateway_id="g", requests_per_s=4.0))
        await stub.ReportFleet(fleet(1, 20))

        def is_told() -> bool:
            newest = service.decisions.newest
            return newest is not None and None not in (newest.fleet, newest.rates)

        await until(is_told)
        told = (await stub.GetDecisions(autoscaler_pb2.GetDecisionsRequest())).decisions
        assert 1 <= len(told) <= 4
        assert told[-1].rates.requests_per_s == 4.0
        assert told[-1].fleet.prefill.num_requests == 20
        times = [each.targets.decided_at for each in told]
        assert times == sorted(times)
        one = await stub.GetDecisions(autoscaler_pb2.GetDecisionsRequest(num_decisions=1))
        assert len(one.decisions) == 1


async def test_a_malformed_fleet_is_refused(store_url: str, cluster: str) -> None:
    async with steered(blitzscale(store_url, cluster), Books()) as (_, stub):
        report = autoscaler_pb2.FleetReport(decode=autoscaler_pb2.PoolLoad(memory=1.5))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.ReportFleet(report)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "decode memory is 1.5" in (refused.value.details() or "")


def test_bounds_delay_and_budget_are_options() -> None:
    config = AutoscalerConfig(
        policy="scaling=tokenscale", max_prefill=3, scale_down_delay=7.0, budget=9, min_decode=2
    )
    params = config.scaling_policy().params
    assert (params["max_prefill"], params["min_decode"], params["hold_down"]) == (3, 2, 7.0)
    assert (config.limit().num_instances, config.limit().min_decode) == (9, 2)


def test_a_role_that_there_is_not_is_refused() -> None:
    with pytest.raises(HeadwayError, match="scaled_by_role is 'decoder'"):
        AutoscalerConfig(scaled_by_role={"decoder": "x"}).targets_by_role()
