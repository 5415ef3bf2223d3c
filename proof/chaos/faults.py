"""The faults that a campaign draws from: each happens, lasts, and ends as it says."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import MappingProxyType

import redis.asyncio as redis

from proof.chaos.proxy import Link
from proof.chaos.rig import NoTargetError, Rig
from services.runtime.failpoints import FAILPOINTS
from services.runtime.identity.roles import ServiceRole

SERVICES = ("scheduler", "worker", "predictor", "autoscaler")
"""Those that clients do not notice; a gateway's death ends its clients' connections."""
_STORE = ("store",)
_PERIOD = 0.2  # seconds of stop and go together
Fault = Callable[[Rig, random.Random], Awaitable[str]]
"""Return what was hit, once the fault has ended; NoTargetError where nothing can be hit."""


async def kill(rig: Rig, rng: random.Random) -> str:
    """SIGKILL a process, half the time a worker."""
    services = ("worker",) if rng.random() < 0.5 else SERVICES
    with rig.target(rng, services) as process:
        process.restart()
        return process.spec.service_id


async def kill_leader(rig: Rig, rng: random.Random) -> str:
    """SIGKILL the scheduler that leads."""
    leader = await rig.leader()
    for process in rig.processes:
        if process.spec.service_id == leader and process.pid is not None:
            with rig.busy(leader):
                process.restart()
                return leader
    raise NoTargetError


async def stop(rig: Rig, rng: random.Random) -> str:
    """Let a process stand still for seconds."""
    with rig.target(rng, SERVICES) as process, rig.stopped(process):
        seconds = rng.uniform(0.5, 7.0)
        await asyncio.sleep(seconds)
        return f"{process.spec.service_id} for {seconds:.1f} s"


async def slow(rig: Rig, rng: random.Random) -> str:
    """Let a process run a small part of the time, for seconds."""
    share = rng.uniform(0.1, 0.6)
    with rig.target(rng, (*SERVICES, "gateway")) as process:
        for _ in range(rng.randint(10, 30)):
            with rig.stopped(process):
                await asyncio.sleep(_PERIOD * (1 - share))
            await asyncio.sleep(_PERIOD * share)
        return f"{process.spec.service_id} at {share:.0%}"


async def drain(rig: Rig, rng: random.Random) -> str:
    """SIGTERM a worker or a scheduler: it gives its work away, ends and is started again."""
    with rig.target(rng, ("worker", "scheduler")) as process:
        if process.pid is not None:
            os.kill(process.pid, signal.SIGTERM)
        await asyncio.sleep(rng.uniform(0.0, 2.0))
        return process.spec.service_id


async def failpoint(rig: Rig, rng: random.Random) -> str:
    """Restart a worker or scheduler with a failpoint, which strikes between saving and acting."""
    with rig.target(rng, ("worker", "scheduler")) as process:
        service = process.spec.service
        name = rng.choice([name for name in FAILPOINTS if name.startswith(f"{service}.")])
        action = rng.choice(("exit:0.2", f"sleep:{rng.uniform(0.2, 3.0):.1f}*3"))
        text = f"{name}={action}"
        await rig.restart_with(process, text)
        await asyncio.sleep(rng.uniform(3.0, 6.0))
        return f"{process.spec.service_id}: {text}"


# --- links ----------------------------------------------------------------------------


async def partition(rig: Rig, rng: random.Random) -> str:
    """Hold back what two services say to each other, in one direction or both."""
    link = await rig.link(rng)
    ways = rng.choice(((True,), (False,), (True, False)))
    with rig.busy(_name(link)):
        rig.rules.held |= {(link, way) for way in ways}
        try:
            await asyncio.sleep(rng.uniform(0.5, 8.0))
        finally:
            rig.rules.held -= {(link, way) for way in ways}
            rig.rules.change()
    return f"{_name(link)}, {'both ways' if len(ways) == 2 else 'one way'}"


async def delay(rig: Rig, rng: random.Random) -> str:
    """Make a link slow: every piece is late."""
    link, late = await rig.link(rng), rng.uniform(0.02, 0.3)
    with rig.busy(_name(link)):
        rig.rules.delays[link] = late
        try:
            await asyncio.sleep(rng.uniform(2.0, 6.0))
        finally:
            rig.rules.delays.pop(link, None)
    return f"{_name(link)} by {late:.2f} s"


async def reset(rig: Rig, rng: random.Random) -> str:
    """Break the connections of a link."""
    link = await rig.link(rng)
    return f"{_name(link)}: {rig.reset(link)} connections"


def _name(link: Link) -> str:
    return f"{link[0]} to {link[1]}"


# --- certificates ---------------------------------------------------------------------


async def certificates(rig: Rig, rng: random.Random) -> str:
    """Swap a service's certificate: another of its authority, or for seconds a stranger's."""
    if rig.certificates is None:
        raise NoTargetError
    with rig.target(rng, (*SERVICES, "gateway")) as process:
        name, role = process.spec.service_id, ServiceRole(process.spec.service)
        is_stranger = rng.random() < 0.5
        rig.certificates.replace(role, name, by_stranger=is_stranger)
        await rig.cut_off(name)
        if is_stranger:
            await asyncio.sleep(rng.uniform(0.2, 2.0))
            if await rig.is_reached(process):
                rig.broken.append(f"{name} is trusted with a stranger's certificate")
            rig.certificates.replace(role, name)
            return f"{name}: a stranger's, refused"
        return f"{name}: issued again"


# --- disk and store -------------------------------------------------------------------


async def disk_full(rig: Rig, rng: random.Random) -> str:
    """Let no write of a process to a file succeed for seconds."""
    with rig.target(rng, (*SERVICES, "gateway")) as process, rig.no_disk(process):
        await asyncio.sleep(rng.uniform(1.0, 5.0))
        return process.spec.service_id


async def store_stopped(rig: Rig, rng: random.Random) -> str:
    """Let the store stand still for seconds."""
    with rig.target(rng, _STORE) as process, rig.stopped(process):
        seconds = rng.uniform(0.3, 5.0)
        await asyncio.sleep(seconds)
        return f"{seconds:.1f} s"


async def store_killed(rig: Rig, rng: random.Random) -> str:
    """SIGKILL the store: it comes back empty."""
    with rig.target(rng, _STORE) as process:
        process.restart()
        await asyncio.sleep(1.0)
        return "restarted, empty"


async def store_wiped(rig: Rig, rng: random.Random) -> str:
    """Delete all that the store holds."""
    with rig.target(rng, _STORE), suppress(redis.RedisError, OSError):
        await rig.store.flushall()
        return "emptied"
    raise NoTargetError


async def store_garbage(rig: Rig, rng: random.Random) -> str:
    """Write nonsense under one of the cluster's keys for seconds."""
    with rig.target(rng, _STORE), suppress(redis.RedisError, OSError):
        key, value = rng.choice(_GARBAGE)
        name = rig.key(key)
        await rig.store.delete(name)
        if isinstance(value, Mapping):
            await rig.store.hset(name, items=[part for pair in value.items() for part in pair])
        else:
            await rig.store.set(name, value, px=3000)
        await asyncio.sleep(3.0)
        await rig.store.delete(name)
        return f"{key} = {value!r}"
    raise NoTargetError


_GARBAGE: tuple[tuple[str, str | bytes | Mapping[str, str]], ...] = (
    ("leader", "x"),
    ("leader", "9|a|no address"),
    ("leader", b"\xff\xfe|\x00|\xff"),
    ("fencing", "abc"),
    ("fencing", "-1"),
    ("member:worker:decode-1", "{"),
    ("member:worker:decode-1", '["a list"]'),
    ("member:scheduler:scheduler", '{"service": 1, "member_id": null, "address": []}'),
    ("targets", "nonsense"),
    ("requests", MappingProxyType({"a key": "a record"})),
    ("requests", "no hash"),
    ("learned", MappingProxyType({"headway-mini": "a record"})),
)


async def kill_gateway(rig: Rig, rng: random.Random) -> str:
    """SIGKILL the gateway: its clients' connections end, and they ask again."""
    with rig.target(rng, ("gateway",)) as process:
        process.restart()
        return process.spec.service_id


FAULTS: Mapping[str, Fault] = {
    "kill": kill,
    "kill-leader": kill_leader,
    "stop": stop,
    "slow": slow,
    "drain": drain,
    "failpoint": failpoint,
    "partition": partition,
    "delay": delay,
    "reset": reset,
    "certificates": certificates,
    "disk-full": disk_full,
    "store-stopped": store_stopped,
    "store-killed": store_killed,
    "store-wiped": store_wiped,
    "store-garbage": store_garbage,
    "kill-gateway": kill_gateway,
}
DEFAULT = tuple(name for name in FAULTS if name != "kill-gateway")
