"""The supervisor scales what it supervises, as the autoscaler's actuator asks it to."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headway.cluster import Role
from headway.errors import Code, HeadwayError
from proof.vopr.cluster import ShellCluster
from proof.vopr.hosts import VirtualHost
from proof.vopr.processes import WorkerShell
from proof.vopr.scenario import SUPERVISOR, Asking, WorkerShape
from services.autoscaler.actuators.process import ProcessActuator
from services.local.role_change import set_role
from services.local.supervised import SupervisedProcess
from services.runtime import wire
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig
from services.runtime.identity.roles import ServiceRole
from services.runtime.store import Store
from tests.fakes.supervised import metric, serves, supervised, until


async def asking(cluster: ShellCluster) -> ProcessActuator:
    """Return an actuator that reaches the supervisor of a cluster in which everything serves."""
    actuator = ProcessActuator(cluster.config, cluster.world.connect(cluster.config))
    await until(lambda: cluster.supervisor.processes[-1].address and serves(cluster))
    return actuator


def ids(cluster: ShellCluster) -> list[str]:
    """Return the workers' ids, in the supervisor's order."""
    return [p.spec.service_id for p in cluster.supervisor.processes if p.spec.role]


def find(cluster: ShellCluster, service_id: str) -> SupervisedProcess:
    """Return a process."""
    return next(p for p in cluster.supervisor.processes if p.spec.service_id == service_id)


def roles(cluster: ShellCluster) -> list[str]:
    """Return the roles in which workers serve, in the order of their hosts."""
    return [worker.role for worker in cluster.workers]


@supervised("prefill", "decode")
async def test_processes_come_and_go_by_role_the_youngest_first(cluster: ShellCluster) -> None:
    actuator = await asking(cluster)
    await actuator.scale("decode", 3)
    await actuator.scale("prefill", 2)
    ordered = [("convertible", 0), ("decode", 3), ("prefill", 2), ("unified", 0)]
    assert [*(await actuator.ordered()).items()] == ordered, "else a seed has two histories"
    assert ids(cluster) == ["w0", "w1", "decode-1", "decode-2", "prefill-1"]
    await until(lambda: serves(cluster))
    assert sorted(roles(cluster)) == ["decode"] * 3 + ["prefill"] * 2
    going = find(cluster, "decode-2")
    await actuator.scale("decode", 2)
    assert (await actuator.ordered())["decode"] == 2, "what drains counts no more"
    await until(lambda: going not in cluster.supervisor.processes)
    assert ids(cluster) == ["w0", "w1", "decode-1", "prefill-1"]
    assert cluster.world.sometimes["a worker has drained"] == 1
    await actuator.scale("decode", 3)
    assert ids(cluster)[-1] == "decode-2"
    found = await actuator.starts()
    assert found is not None
    assert sorted(start.role for start in found.starts) == ["decode", "decode", "prefill"]


@pytest.mark.parametrize("drains", [True, False])
@supervised("prefill", "decode", "decode", shape=WorkerShape(num_blocks=400))
async def test_streams_of_a_decoder_that_leaves_go_on_elsewhere_and_none_is_sent_again(
    cluster: ShellCluster, drains: bool
) -> None:
    """End it, or make it a prefiller. Tokens are checked as in every history."""
    actuator = await asking(cluster)
    for number in range(6):
        cluster.submit(Asking(f"r{number}", cluster.world.loop.time(), max_tokens=200))
    await until(lambda: metric(cluster, "headway_gateway_running_requests", "g0") == 6)
    going = find(cluster, "w2")
    if drains:
        await actuator.scale("decode", 1)
        await until(lambda: going not in cluster.supervisor.processes)
        assert not cluster.world.sometimes["a drain takes too long"]
    else:
        assert await actuator.change_role("decode", "prefill", 1) == 1
    await until(lambda: not cluster.world.checker.open_ids)
    assert metric(cluster, "headway_scheduler_moves_total") > 0
    assert metric(cluster, "headway_gateway_resubmitted_requests", "g0") == 0


@supervised()
async def test_a_worker_that_was_given_up_goes_first(cluster: ShellCluster) -> None:
    actuator = await asking(cluster)
    cluster.hosts.of_next_worker = VirtualHost([1, 1, 1])
    await actuator.scale("unified", 3)
    await until(lambda: find(cluster, "unified-1").is_given_up)
    await until(lambda: serves(cluster))
    await actuator.scale("unified", 2)
    await until(lambda: ids(cluster) == ["w0", "unified-2"])


@supervised("unified", "unified")
async def test_the_youngest_takes_another_role_and_keeps_it_when_it_starts_again(
    cluster: ShellCluster,
) -> None:
    actuator = await asking(cluster)
    assert await actuator.change_role("unified", "decode", 1) == 1
    assert roles(cluster) == ["unified", "decode"]
    assert (await actuator.ordered())["decode"] == 1
    cluster.end("w1")
    await until(lambda: not serves(cluster))
    assert await actuator.change_role("decode", "prefill", 1) == 0, "it does not serve"
    await until(lambda: serves(cluster))
    assert roles(cluster) == ["unified", "decode"]
    cluster.pause("w1")
    assert await actuator.change_role("decode", "prefill", 1) == 0
    assert (await actuator.ordered())["decode"] == 1, "who cannot be reached keeps its own"


@pytest.mark.parametrize(("seconds", "number", "changed"), [(7.0, 3, 3), (60.0, 2, 0)])
@supervised("unified", "unified", "unified")
async def test_workers_that_answer_late_are_waited_for_together_but_not_for_ever(
    cluster: ShellCluster, seconds: float, number: int, changed: int
) -> None:
    """A worker that never answers keeps its role, and the actuator goes on."""
    actuator = await asking(cluster)
    cluster.world.wires.takes["SetRole"] = seconds
    assert await actuator.change_role("unified", "decode", number) == changed
    assert (await actuator.ordered())["unified"] == 3 - changed


@supervised("unified", "unified")
async def test_a_worker_whose_answer_is_lost_is_told_to_keep_its_role(
    cluster: ShellCluster,
) -> None:
    actuator = await asking(cluster)
    link = cluster.world.wires.link("w1", SUPERVISOR)
    link.unanswered = 1.0
    assert await actuator.change_role("unified", "decode", 1) == 0
    assert roles(cluster) == ["unified", "decode"], "it has taken the other one"
    link.unanswered = 0.0
    await until(lambda: roles(cluster) == ["unified", "unified"])


@supervised("unified", "unified", "unified")
async def test_a_worker_has_one_order_for_its_role_at_a_time(cluster: ShellCluster) -> None:
    actuator = await asking(cluster)
    cluster.world.wires.takes["SetRole"] = 1.0
    orders = (actuator.change_role("unified", role, 1) for role in ("decode", "prefill"))
    assert await asyncio.gather(*orders) == [1, 1]
    assert sorted(roles(cluster)) == ["decode", "prefill", "unified"]


@supervised("unified")
async def test_an_order_without_the_files_of_tls_is_one_that_is_not_taken(
    cluster: ShellCluster, tmp_path: Path
) -> None:
    missing = dict.fromkeys(("tls_cert", "tls_key", "tls_ca"), tmp_path / "replaced.pem")
    await asking(cluster)
    config = cluster.config.model_copy(update=missing)
    assert not await set_role(cluster.supervisor.processes[-1], "decode", config)


@supervised("unified")
async def test_a_worker_that_has_not_been_found_yet_takes_no_order(cluster: ShellCluster) -> None:
    await asking(cluster)
    process = cluster.supervisor.processes[-1]
    process.become(process.spec)
    assert not await set_role(process, "decode", cluster.config)


@pytest.mark.parametrize(
    ("role", "number", "said"),
    [("juggler", 1, "role is 'juggler'"), ("decode", 65, "num_workers is 65")],
)
@supervised()
async def test_an_order_that_makes_no_sense_is_refused(
    cluster: ShellCluster, role: str, number: int, said: str
) -> None:
    actuator = await asking(cluster)
    with pytest.raises(HeadwayError, match=said):
        await actuator.scale(role, number)
    if role == "juggler":
        with pytest.raises(HeadwayError, match=said):
            await actuator.change_role("unified", role, 1)
    assert ids(cluster) == ["w0"]


async def test_without_a_supervisor_the_way_out_is_named(
    store_url: str, cluster: str, store: Store
) -> None:
    actuator = ProcessActuator(ServiceConfig(store=store_url, cluster=cluster), store)
    with pytest.raises(HeadwayError, match="start it with `headway up`"):
        await actuator.ordered()


# --- workers that stand by --------------------------------------------------------------


async def spare_of(cluster: ShellCluster) -> SupervisedProcess:
    """Return the worker that stands by, once it does."""
    await until(lambda: any(p.spec.membership and p.address for p in cluster.supervisor.processes))
    return find(cluster, "standby-1")


@supervised(standby=1)
async def test_a_spare_takes_the_role_that_is_ordered_and_keeps_it(cluster: ShellCluster) -> None:
    actuator = await asking(cluster)
    spare = await spare_of(cluster)
    store, pid = cluster.world.connect(cluster.config), spare.pid
    assert [member.member_id for member in await store.members("worker")] == ["w0"]
    assert (await actuator.ordered()).get("unified") == 1, "it has no role yet"
    await actuator.scale("decode", 1)
    assert (await actuator.ordered())["decode"] == 1
    await until(lambda: serves(cluster))
    found = await actuator.starts()
    assert found is not None
    (start,) = found.starts
    assert (start.role, start.warm, spare.pid) == ("decode", True, pid)
    assert [m.member_id for m in await store.members("worker")] == ["standby-1", "w0"]
    assert not await store.members("standby"), "another one only after the quiet time"
    await actuator.scale("decode", 2)
    await until(lambda: serves(cluster))
    found = await actuator.starts()
    assert found is not None
    assert [start.warm for start in found.starts] == [False], "none stood by"
    cluster.end("w1")
    await until(lambda: spare.pid not in (None, pid) and spare.address)
    assert roles(cluster) == ["unified", "decode", "decode"]
    await asyncio.sleep(6.0)
    assert await store.members("standby")


@supervised(standby=1)
async def test_a_spare_that_cannot_be_told_its_role_starts_with_it(cluster: ShellCluster) -> None:
    actuator = await asking(cluster)
    spare = await spare_of(cluster)
    host, pid = cluster.hosts.name_of("standby-1"), spare.pid
    cluster.pause(host)
    await actuator.scale("decode", 1)
    await until(lambda: spare.address)
    worker = cluster.processes[host]
    assert isinstance(worker, WorkerShell)
    assert (worker.role, worker.pid == pid) == ("decode", False)


@supervised(standby=1)
async def test_a_spare_takes_one_role_and_no_other(cluster: ShellCluster) -> None:
    spare = await spare_of(cluster)

    async def told(role: str) -> Code | None:
        async with open_channel(address, cluster.config, ServiceRole.WORKER) as channel:
            try:
                await wire.activate(channel, role, within=5.0)
            except HeadwayError as error:
                return error.code
        return None

    address = spare.address
    assert await told("juggler") is Code.INVALID_ARGUMENT
    assert [await told("decode") for _ in range(2)] == [None, None]
    assert await told(Role.PREFILL.value) is Code.FAILED_PRECONDITION
