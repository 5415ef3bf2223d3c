"""The scheduler service on real gRPC and a real store."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest
from structlog.testing import capture_logs

from cli.explain import decisions_about
from headway.cluster import Role
from headway.errors import Code, HeadwayError
from headway.messages import CancelStream, HeldRequest, Lost, Rejected
from protos import common_pb2, scheduler_pb2, scheduler_pb2_grpc
from services.runtime import wire
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig
from services.runtime.identity.roles import ServiceRole
from services.runtime.store import Member
from services.scheduler.config import SchedulerConfig
from tests.fakes.scheduler_rig import CHUNK, EmulatedWorker, Rig, key, make_request, until
from tests.fakes.worker_service import Leader, served

# --- requests -----------------------------------------------------------------------------


async def test_a_request_travels_from_gateway_to_worker(rig: Rig) -> None:
    _, _, gateway = await rig.busy()
    await until(lambda: gateway.placed == [(1, "w")], "the gateway knows")


async def test_a_cancel_reaches_the_worker(rig: Rig) -> None:
    _, worker, gateway = await rig.busy()
    await gateway.write(CancelStream(key(1)))
    await until(lambda: worker.of(CancelStream) == [CancelStream(key(1))], "it is told")


async def test_a_refusal_names_value_and_limit(rig: Rig) -> None:
    leader = await rig.leader()
    await rig.worker("w")
    gateway = await rig.gateway(leader.address)
    await until(lambda: leader.metrics()["headway_scheduler_workers"] == 1, "the worker is known")
    await gateway.submit(1, model="x")
    await until(lambda: len(gateway.of(Rejected)) == 1, "it is refused")
    assert gateway.of(Rejected)[0].code is Code.UNAVAILABLE
    assert "'x'" in gateway.of(Rejected)[0].message


# --- workers ------------------------------------------------------------------------------


async def test_a_worker_hears_the_fencing_token_first(rig: Rig) -> None:
    leader = await rig.leader()
    worker = await rig.worker("w")
    await until(lambda: len(worker.hellos) == 1, "it is greeted")
    found = await rig.store.leader()
    assert found is not None
    assert worker.hellos[0].fencing_token == found.fencing_token
    assert worker.hellos[0].scheduler_id == leader.runtime.config.service_id


async def test_a_broken_stream_loses_the_workers_requests_at_once(rig: Rig) -> None:
    _, worker, gateway = await rig.busy()
    worker.hang_up()
    await until(lambda: len(gateway.of(Lost)) == 1, "the gateway is told")
    assert gateway.of(Lost)[0].keys == (key(1),)


async def test_a_worker_that_is_still_a_member_is_dialled_again(rig: Rig) -> None:
    await rig.leader()
    worker = await rig.worker("w")
    await until(lambda: len(worker.hellos) == 1, "it is greeted")
    worker.hang_up()
    await until(lambda: len(worker.hellos) == 2, "it is greeted again")


async def test_a_member_that_cannot_be_reached_is_counted(rig: Rig) -> None:
    leader = await rig.leader()
    await rig.worker("w")
    name = "headway_scheduler_closed_worker_links"
    await until(lambda: leader.metrics()["headway_scheduler_workers"] == 1, "it is known")
    await until(lambda: leader.metrics()[name] == 0, "its link is open")
    lost = EmulatedWorker("lost", Role.DECODE)
    lost.address = "127.0.0.1:9"
    await rig.join(lost)
    await until(lambda: leader.metrics()[name] == 1, "a link stays closed")


async def test_a_worker_whose_lease_expires_is_let_go(rig: Rig) -> None:
    _, worker, gateway = await rig.busy()
    await rig.leave(worker)
    await until(lambda: len(gateway.of(Lost)) == 1, "the gateway is told")
    await gateway.submit(2)
    await asyncio.sleep(0.3)
    assert worker.dispatched == [1]


async def test_a_worker_under_another_name_is_not_listened_to(rig: Rig) -> None:
    leader = await rig.leader()
    worker = await rig.worker("w")
    await until(lambda: leader.metrics()["headway_scheduler_workers"] == 1, "it is known")
    worker.worker_id = "impostor"
    worker.hang_up()
    await until(lambda: len(worker.hellos) >= 2, "it is greeted again")
    await until(lambda: leader.metrics()["headway_scheduler_workers"] == 0, "it is not believed")


# --- gateways -----------------------------------------------------------------------------


async def test_a_newer_stream_of_a_gateway_ends_the_older_one(rig: Rig) -> None:
    leader = await rig.leader()
    worker = await rig.worker("w")
    older = await rig.gateway(leader.address)
    await until(lambda: len(worker.hellos) == 1, "the worker is known")
    newer = await rig.gateway(leader.address)
    await until(lambda: older.error is not None, "the older stream ends")
    await newer.submit(1)
    await until(lambda: newer.placed == [(1, "w")], "the newer one is served")


@pytest.mark.parametrize(
    ("packed", "said"),
    [
        (scheduler_pb2.GatewayMessage(), "body"),
        (
            scheduler_pb2.GatewayMessage(
                hello=scheduler_pb2.GatewayHello(gateway_id="g", address="g:1")
            ),
            "a later message",
        ),
        (
            scheduler_pb2.GatewayMessage(
                cancel=common_pb2.CancelStream(gateway_id="other", stream_id=1)
            ),
            "as in the stream's hello",
        ),
    ],
)
async def test_nonsense_from_a_gateway_is_refused_and_others_are_served(
    rig: Rig, packed: scheduler_pb2.GatewayMessage, said: str
) -> None:
    leader = await rig.leader()
    worker = await rig.worker("w")
    bad = await rig.gateway(leader.address, "g")
    good = await rig.gateway(leader.address, "h")
    await bad.write_raw(packed)
    await until(lambda: bad.error is not None, "its stream ends")
    assert bad.error is not None
    assert bad.error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert said in str(bad.error.details())
    await good.submit(1)
    await until(lambda: worker.dispatched == [1], "the others are served")


async def test_a_gateway_that_says_no_hello_is_refused(rig: Rig) -> None:
    leader = await rig.leader()
    gateway = await rig.gateway(leader.address, "")
    await until(lambda: gateway.error is not None, "its stream ends")
    assert gateway.error is not None
    assert gateway.error.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_requests_of_a_gateway_that_stays_away_are_cancelled(rig: Rig) -> None:
    _, worker, gateway = await rig.busy(gateway_grace=0.2)
    gateway._call.cancel()
    await until(lambda: worker.of(CancelStream) == [CancelStream(key(1))], "it is stopped")


# --- leadership ---------------------------------------------------------------------------


async def test_one_leads_and_the_other_says_where(rig: Rig) -> None:
    leader = await rig.leader()
    standby = await rig.scheduler()
    await until(lambda: standby.service._leader_address() == leader.address, "it knows")
    gateway = await rig.gateway(standby.address)
    await until(lambda: gateway.error is not None, "the standby refuses")
    assert gateway.error is not None
    assert gateway.error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert leader.address in str(gateway.error.details())
    assert not standby.service.leads
    assert standby.metrics()["headway_scheduler_leads"] == 0


async def test_a_standby_takes_over_with_a_higher_token_and_repeats_no_dispatch(rig: Rig) -> None:
    leader = await rig.leader()
    standby = await rig.scheduler()
    worker = await rig.worker("w")
    gateway = await rig.gateway(leader.address)
    await gateway.submit(1)
    await until(lambda: worker.dispatched == [1], "the worker has it")
    worker.held = (HeldRequest(key(1), "r1", 0, 5, False),)
    await leader.service.drain()
    await until(lambda: standby.service.leads, "the standby leads")
    await until(lambda: len(worker.hellos) == 2, "the worker hears of it")
    assert worker.hellos[1].fencing_token > worker.hellos[0].fencing_token
    again = await rig.gateway(standby.address)
    await again.submit(1)
    await again.submit(2)
    await until(lambda: worker.dispatched == [1, 2], "only the new one is dispatched")
    assert worker.orders[0] != worker.orders[-1]


async def test_a_leader_that_loses_its_lease_stands_by_and_can_lead_again(rig: Rig) -> None:
    leader, worker, gateway = await rig.trio()
    await until(lambda: len(worker.hellos) == 1, "the worker is known")
    held = await rig.store.leader()
    assert held is not None
    await rig.store.release_leader(held.candidate_id)
    usurper = await rig.store.acquire_leader("usurper", "127.0.0.1:9", 1.0)
    assert usurper is not None
    await until(lambda: not leader.service.leads, "it stands by")
    await until(lambda: gateway.error is not None, "its gateways are sent away")
    assert gateway.error is not None
    assert gateway.error.code() is grpc.StatusCode.FAILED_PRECONDITION
    await until(lambda: leader.service.leads, "it leads again")
    await until(lambda: len(worker.hellos) == 2, "the worker hears of it")
    assert worker.hellos[1].fencing_token > usurper
    again = await rig.gateway(leader.address)
    await again.submit(1)
    await until(lambda: worker.dispatched == [1], "and it works")


async def test_a_leader_resigns_once_all_workers_follow_a_newer_one(
    rig: Rig, store_url: str, cluster: str
) -> None:
    leader = await rig.leader()
    async with served(store_url, cluster, "w", engine="fake") as (stub, runtime):
        newer = Leader(stub, int(1e6 * (time.time() + 60.0)))
        await newer.greet()
        await rig.store.join(Member("worker", "w", runtime.address), ttl=60.0)
        with capture_logs() as logs:
            await until(lambda: not leader.service.leads, "it resigns")
    assert "refused_by_all_workers" in [each["event"] for each in logs]


async def test_a_scheduler_can_be_stopped_at_any_moment(rig: Rig) -> None:
    for num_turns in range(30):
        scheduler = await rig.scheduler(leader_ttl=0.3)
        for _ in range(5 * num_turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await scheduler.service.stop()
        assert await rig.store.leader() is None


# --- explanations -------------------------------------------------------------------------


async def test_the_leader_tells_what_it_decided_for_a_request(rig: Rig) -> None:
    leader, worker, gateway = await rig.trio(num_decisions_kept=1)
    await until(lambda: len(worker.hellos) == 1, "the worker is known")
    await gateway.submit(1)
    await until(lambda: worker.dispatched == [1], "the worker has it")
    async with open_channel(leader.address, ServiceConfig(), ServiceRole.SCHEDULER) as channel:
        stub = scheduler_pb2_grpc.SchedulerStub(channel)
        about = make_request(1).request_id
        reply = await stub.Explain(scheduler_pb2.ExplainRequest(request_id=about))
        (told,) = decisions_about(about, reply.decisions)
        assert (told.question, told.unit) == ("dispatch", "w/0")
        worker.end_pass(finished=1)
        await gateway.submit(2)
        await until(lambda: worker.dispatched == [1, 2], "another decision is kept instead")
        reply = await stub.Explain(scheduler_pb2.ExplainRequest(request_id=about))
        assert not reply.decisions


# --- metrics and configuration ------------------------------------------------------------


async def test_the_leader_shows_the_cluster_and_a_standby_says_where_the_leader_is(
    rig: Rig,
) -> None:
    _, worker, gateway = await rig.busy()
    picture = await gateway.picture()
    assert [(w.worker_id, w.role, w.address) for w in picture.workers] == [
        ("w", Role.UNIFIED, worker.address)
    ]
    assert (picture.num_tracked, picture.windows[0].model) == (1, "m")
    standby = await rig.scheduler()
    async with open_channel(
        standby.address, ServiceConfig(**rig.config), ServiceRole.SCHEDULER
    ) as channel:
        with pytest.raises(HeadwayError, match="stands by"):
            await wire.picture(channel, within=60.0)


async def test_metrics_tell_of_window_interval_and_dispatches(rig: Rig) -> None:
    leader, worker, gateway = await rig.trio(set="dispatch.watchdog_floor=600")
    active = 'headway_scheduler_active_instances{model="m"}'
    await until(lambda: leader.metrics().get(active) == 1, "the worker is seen")
    await gateway.submit(1, num_tokens=CHUNK)
    await until(lambda: worker.dispatched == [1], "the worker has it")
    await gateway.submit(2)
    await gateway.submit(3, model="x")
    await until(lambda: len(gateway.of(Rejected)) == 1, "one is refused")
    waiting = 'headway_scheduler_waiting_requests{model="m"}'
    await until(lambda: leader.metrics().get(waiting) == 1, "one is seen to wait")
    seen = leader.metrics()
    assert seen["headway_scheduler_leads"] == 1
    assert seen["headway_scheduler_dispatched_requests_total"] == 1
    assert seen['headway_scheduler_rejections_total{code="unavailable"}'] == 1
    assert seen['headway_scheduler_wait_seconds_count{question="dispatch"}'] == 1
    assert seen["headway_scheduler_chunk_utilisation_count"] == 1
    assert seen['headway_scheduler_interval_seconds{model="m"}'] > 0
    worker.end_pass(finished=1)
    await until(lambda: worker.dispatched == [1, 2], "the next one follows")


async def test_the_watchdog_frees_an_instance_whose_end_of_pass_never_comes(rig: Rig) -> None:
    leader, worker, gateway = await rig.trio(set="dispatch.watchdog_floor=0.3")
    await gateway.submit(1, num_tokens=CHUNK)
    await gateway.submit(2)
    await until(lambda: worker.dispatched == [1, 2], "the second follows without an EndForward")
    seen = leader.metrics()
    assert seen['headway_scheduler_events_total{event="watchdog_expired"}'] >= 1
    assert seen['headway_scheduler_dispatches_total{rule="fixed-interval"}'] >= 1


def test_the_configuration_names_policies_and_their_parameters() -> None:
    config = SchedulerConfig(
        policy="dispatch=immediate,placement=min-cost", set="dispatch.rule=least-tokens"
    )
    settings = config.settings()
    assert (settings.dispatch, settings.placement) == ("immediate", "min-cost")
    assert settings.dispatch_params["rule"] == "least-tokens"


def test_the_live_watchdog_has_a_floor_unless_told_otherwise() -> None:
    assert SchedulerConfig().settings().dispatch_params["watchdog_floor"] == 0.25
    told = SchedulerConfig(set="dispatch.watchdog_floor=0")
    assert told.settings().dispatch_params["watchdog_floor"] == 0.0


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "dispatch=fifo"},
        {"policy": "packing=tetris"},
        {"policy": "placement=anywhere"},
        {"set": "placement.q=1"},
        {"set": "dispatch.window=0"},
    ],
)
def test_an_unknown_policy_or_parameter_is_refused_at_the_start(options: dict[str, object]) -> None:
    with pytest.raises(HeadwayError, match="must be"):
        SchedulerConfig(**options).settings()  # type: ignore[arg-type]  # fields by name


# --- what is assumed ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"preset": "tokenscale"}, [("dispatch tokenscale", "llama-8b-a100", 14_000.0)]),
        ({"preset": "tokenscale", "profile": "llama-8b-h100"}, []),
        ({"preset": "headway"}, []),
    ],
)
async def test_routing_by_another_machines_velocities_is_said_at_the_start(
    rig: Rig, options: dict[str, str], told: list[tuple[str, str, float]]
) -> None:
    with capture_logs() as logs:
        await rig.scheduler(**options)
    found = [log for log in logs if log["event"] == "profile_assumed"]
    assert [(log["policy"], log["profile"], log["V_P"]) for log in found] == told
