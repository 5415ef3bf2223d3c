"""Each preset in a whole cluster on virtual time: what it alone does shows in the metrics.

Every answer is checked, as in all histories of ``proof.vopr``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from itertools import count
from typing import Any

import pytest

from proof.vopr.cluster import ShellCluster
from proof.vopr.scenario import Asking, WorkerShape
from tests.fakes.supervised import metric, serves, supervised, until

Test = Callable[[ShellCluster, "Ask"], Awaitable[None]]
Ask = Callable[..., Coroutine[Any, Any, None]]
PAIR = ("prefill", "decode")
CONVERTIBLE = (*PAIR, "convertible")
DISPATCHES, DISPATCHED = (
    f"headway_scheduler_{name}_total" for name in ("dispatches", "dispatched_requests")
)
MOVES = 'headway_scheduler_moves_total{cause="%s"}'
CONVERTED = 'headway_scheduler_dispatches_total{rule="convertible"}'
NEVER_LATE = ",".join(f"dispatch.ttft_{size}=600" for size in ("short", "medium", "long"))


def under(
    preset: str, *roles: str, shape: Any = None, **options: str
) -> Callable[[Test], Callable[[], None]]:
    """Have a test run in a cluster under a preset, with options of its services, that serves."""
    shape = WorkerShape(**{"num_blocks": 64, "chunk_tokens": 64, **(shape or {})})
    like = {"preset": preset, "policy": options.get("policy", ""), "request_timeout": 120.0}

    def decorate(test: Test) -> Callable[[], None]:
        @supervised(*roles, shape=shape, **like)
        async def live(cluster: ShellCluster) -> None:
            num_workers = len(cluster.scenario.roles)
            await until(partial(serves, cluster))
            await until(lambda: metric(cluster, "headway_scheduler_workers") == num_workers)
            await test(cluster, partial(ask, cluster, count()))

        def lived() -> None:
            with pytest.MonkeyPatch.context() as patch:
                for name, value in options.items():
                    patch.setenv(f"HEADWAY_{name.upper()}", value)
                live()

        return lived

    return decorate


async def ask(cluster: ShellCluster, numbers: count[int], number: int, **like: Any) -> None:
    """Send so many requests at once; return when all have been answered."""
    for _ in range(number):
        cluster.submit(Asking(f"r{next(numbers)}", cluster.world.loop.time(), **like))
    await asyncio.sleep(0.1)
    await until(lambda: not cluster.world.checker.open_ids)


@under("vllm-like", *PAIR)
async def test_vllm_like_dispatches_one_by_one_and_holds_nothing(
    cluster: ShellCluster, ask: Ask
) -> None:
    await ask(7, paced=True)
    one_by_one = 'headway_scheduler_dispatches_total{rule="least-outstanding"}'
    assert metric(cluster, one_by_one) == metric(cluster, DISPATCHED) == 7
    assert metric(cluster, "headway_gateway_paced_tokens", "g0") == 0


@under("sbs", *PAIR)
async def test_sbs_holds_requests_and_sends_them_together(cluster: ShellCluster, ask: Ask) -> None:
    await ask(40)
    waits = 'headway_scheduler_wait_seconds_sum{question="dispatch"}'
    assert metric(cluster, DISPATCHES) < metric(cluster, DISPATCHED) == 40
    assert metric(cluster, waits) > 0


@under("uniboost", shape={"num_blocks": 20, "prefix_caching": False})
async def test_uniboost_preempts_for_better_requests_and_is_told_a_fitted_gamma(
    cluster: ShellCluster, ask: Ask
) -> None:
    long = asyncio.create_task(ask(4, max_tokens=70))
    await asyncio.sleep(1.0)
    await ask(20, max_tokens=2)
    await long
    assert metric(cluster, "headway_worker_preemptions_total", "w0") > 0
    # More at once than the blocks hold, so that some wait for more than a second.
    while not metric(cluster, "headway_worker_gamma_per_s", "w0"):
        await ask(60, max_tokens=40)
    gamma = metric(cluster, "headway_scheduler_gamma_per_s")
    assert gamma == metric(cluster, "headway_worker_gamma_per_s", "w0")


@under(
    "star",
    "unified",
    "unified",
    set="rescheduling.interval=0.1,rescheduling.rest=60,rescheduling.step_tokens=64",
)
async def test_star_moves_running_requests_to_where_there_is_less_to_come(
    cluster: ShellCluster, ask: Ask
) -> None:
    """Long ones and short ones by turns: each worker has one kind until some move."""
    while not metric(cluster, MOVES % "rescheduling"):
        async with asyncio.TaskGroup() as group:
            for number in range(6):
                group.create_task(ask(1, max_tokens=2 if number % 2 else 200))


@under("pascal", *PAIR, "decode", set="pacing.tpot=0.2")
async def test_pascal_moves_answers_and_paces_them_unless_told_otherwise(
    cluster: ShellCluster, ask: Ask
) -> None:
    seen = 0.0
    asked = asyncio.create_task(ask(8, reasons=True, max_tokens=120))
    while not asked.done():
        await asyncio.sleep(0.05)
        names = ((f"w{n}", "headway_worker_reasoning_requests") for n in (1, 2))
        seen += sum(metric(cluster, name, worker) for worker, name in names)
    assert seen > 0
    assert metric(cluster, "headway_gateway_paced_tokens", "g0") == 0
    await ask(8, reasons=True, paced=True, max_tokens=120)
    assert metric(cluster, MOVES % "boundary") > 0
    assert metric(cluster, "headway_gateway_paced_tokens", "g0") > 0
    assert metric(cluster, "headway_gateway_ttfat_seconds_sum", "g0") > 0
    assert metric(cluster, "headway_gateway_qoe_count", "g0") > 0


async def give_bursts_to_a_convertible(cluster: ShellCluster, ask: Ask) -> None:
    """Fifty at once, and again after a while that is quiet."""
    for _ in range(3):
        await ask(50, max_tokens=4)
        await asyncio.sleep(2.0)
    assert metric(cluster, "headway_gateway_burst_requests_total", "g0") > 0
    assert metric(cluster, CONVERTED) > 0


test_tokenscale_sends_bursts_to_convertible_decoders = under("tokenscale", *CONVERTIBLE)(
    give_bursts_to_a_convertible
)


@under("headway", *CONVERTIBLE, set=NEVER_LATE, policy="burst=off")
async def test_under_headway_a_convertible_prefills_nothing_but_bursts(
    cluster: ShellCluster, ask: Ask
) -> None:
    """On any machine: no SLO is so short that a prompt could be late for it."""
    for _ in range(3):
        await ask(50, max_tokens=4)
    assert metric(cluster, DISPATCHED) == 150
    assert metric(cluster, CONVERTED) == 0


@under("headway", *CONVERTIBLE, set=f"{NEVER_LATE},pacing.tpot=0.2")
async def test_headway_holds_windows_paces_and_gives_bursts_to_convertibles(
    cluster: ShellCluster, ask: Ask
) -> None:
    await give_bursts_to_a_convertible(cluster, ask)
    await ask(4, paced=True, max_tokens=20)
    assert metric(cluster, DISPATCHES) < metric(cluster, DISPATCHED)
    assert metric(cluster, "headway_gateway_paced_tokens", "g0") > 0
