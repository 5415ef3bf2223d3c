"""Plans of what happens to a fake cluster: strategies, a runner and what must hold at the end."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

from headway.cluster import Role
from headway.core.scheduler.settings import Graces, SchedulerSettings
from tests.fakes.cluster import Cluster
from tests.fakes.lives import conserves
from tests.fakes.paged import expected_output

# Links may take as long as they like here, so tokens may be on their way for ever.
PATIENT = SchedulerSettings(graces=Graces(finish=1e9), persists=True)


ROLES = st.sampled_from(
    [
        [Role.UNIFIED],
        [Role.UNIFIED, Role.UNIFIED],
        [Role.PREFILL, Role.DECODE],
        [Role.PREFILL, Role.PREFILL, Role.DECODE, Role.DECODE],
        [Role.PREFILL, Role.UNIFIED, Role.DECODE],
    ]
)


SUBMIT = st.tuples(st.just("submit"), st.integers(1, 40), st.integers(1, 12))


STEP = st.tuples(st.just("step"), st.integers(0, 30), st.integers(1, 8))


TIME = st.tuples(st.just("time"), st.integers(0, 200), st.just(0))


TROUBLE = st.tuples(
    st.sampled_from(["kill", "revive", "blip-worker", "blip-gateway", "elect"]),
    st.integers(0, 3),
    st.just(0),
)


Plan = list[tuple[str, int, int]]


def settle(cluster: Cluster) -> None:
    """Rest; drains end by themselves, and who has gone is started again."""
    for _ in range(1000):
        cluster.end_drains()
        for place in range(len(cluster.roles)):
            cluster.revive(place)
        if not cluster.draining:
            cluster.settle()
            return
        go_on(cluster, 100)
    raise AssertionError("a worker that drains never gets rid of what it holds")


def go_on(cluster: Cluster, num_steps: int) -> None:
    for turn in range(num_steps):
        steps = cluster.steps()
        if steps:
            steps[turn % len(steps)]()
        cluster.now += 1e-4
        cluster.pass_time(0.0 if steps else 0.1)


def run(cluster: Cluster, plan: Plan) -> dict[str, tuple[int, int]]:
    """Follow the plan, and come to rest with the first roles; what was asked for, by request id."""
    asked: dict[str, tuple[int, int]] = {}
    first_roles = list(cluster.roles)
    for name, first, second in plan:
        if name == "submit":
            asked[f"r{cluster.num_submitted}"] = first, second
            cluster.submit(first, second)
        elif name == "step":
            for _ in range(second):
                steps = cluster.steps()
                if steps:
                    steps[first % len(steps)]()
            cluster.end_drains()
        elif name == "time":
            cluster.pass_time(first / 100)
        elif name == "leave":
            cluster.leave(first)
        else:
            trouble(cluster, name, first, second)
    for place, role in enumerate(first_roles):
        cluster.change_role(place, role)
    cluster.roles = first_roles
    settle(cluster)
    for _ in cluster.roles:  # with the next report, nothing is believed that is not so
        asked[f"r{cluster.num_submitted}"] = 30, 2
        cluster.submit(30, 2)
    settle(cluster)
    return asked


def trouble(cluster: Cluster, name: str, number: int, role: int) -> None:
    place = number % len(cluster.roles)
    match name:
        case "drain":
            cluster.drain(place)
        case "role":
            cluster.change_role(place, list(Role)[role])
        case "kill":
            cluster.kill(place)
        case "revive":
            cluster.revive(place)
        case "blip-worker":
            cluster.blip_worker(place)
        case "blip-gateway":
            cluster.blip_gateway()
        case "elect":
            cluster.elect(number)


def check(cluster: Cluster, asked: dict[str, tuple[int, int]]) -> None:
    assert cluster.failed == {}
    for number, (request_id, (num_prompt, max_tokens)) in enumerate(asked.items()):
        expected = expected_output(cluster.prompt(number, num_prompt), max_tokens)
        output = cluster.outputs[request_id]
        assert output == expected[: len(output)]
        if cluster.ended[request_id] != "left":
            assert cluster.ended[request_id] == "length"
            assert len(output) == max_tokens
    check_lives(cluster, asked)
    check_at_rest(cluster)


def check_lives(cluster: Cluster, asked: Iterable[str]) -> None:
    """Check that each request has a life that ended as it did, without gap or overlap."""
    for request_id in asked:
        life = cluster.gateway.lives.find(request_id, cluster.now)
        assert life is not None
        assert life.status == cluster.ended[request_id].replace("left", "cancelled")
        assert life.tokens.output == len(cluster.outputs[request_id])
        conserves(life)


def check_at_rest(cluster: Cluster) -> None:
    """Check that nothing is held or tracked, and that every unit has all its blocks."""
    assert all(worker.core.num_held == 0 for worker in cluster.workers.values())
    status = cluster.scheduler.status()
    assert status.num_tracked == status.num_awaiting_decode == 0
    assert all(pool.num_waiting == pool.backlog_tokens == 0 for pool in status.pools)
    for unit in cluster.scheduler.matrix():
        assert unit.capacity == cluster.shape["chunk"]
        assert unit.num_free_blocks == cluster.shape["blocks"]
        if cluster.workers[unit.unit.worker_id].info.role.decodes:
            assert unit.num_requests == unit.kv_tokens == 0
