"""What each kind of fault does to a cluster of live services, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from headway.cluster import Role
from headway.presets import PRESETS
from proof.vopr.cluster import ShellCluster
from proof.vopr.hosts import NO_ROOM, VirtualHost
from proof.vopr.scenario import FaultKind, PlannedFault

Undo = Callable[[], None]
_ROLES = (Role.UNIFIED, Role.PREFILL, Role.DECODE, Role.UNIFIED)
_SCRIBBLES = ("leader", "member:", "requests")
_DRAG = 0.1
"""Of a slow process's seconds for an event: each takes about ten steps of the loop."""


def plan(cluster: ShellCluster) -> None:
    """Plan all faults of the scenario, each with its end."""
    for fault in cluster.scenario.faults:
        cluster.world.loop.at(fault.at, partial(_strike, cluster, fault))


def _strike(cluster: ShellCluster, fault: PlannedFault) -> None:
    world = cluster.world
    world.happened(f"fault {fault}")
    world.hit(f"fault: {fault.kind.name}")
    undo = _ACTS[fault.kind](cluster, fault)
    if undo is not None:
        world.loop.later(fault.lasts, undo)


def _delay(cluster: ShellCluster, fault: PlannedFault) -> Undo:
    wires = cluster.world.wires
    pairs = [(fault.on, fault.to), (fault.to, fault.on)]
    for pair in pairs:
        link = wires.link(*pair)
        link.extra_delay, link.jitter = fault.amount / 2, fault.amount

    def undo() -> None:
        for pair in pairs:
            link = wires.link(*pair)
            link.extra_delay = link.jitter = 0.0

    return undo


def _cut(cluster: ShellCluster, fault: PlannedFault) -> None:
    half_open = fault.kind is FaultKind.HALF_OPEN
    cluster.world.wires.cut(fault.on, fault.to, half_open=half_open)


def _partition(cluster: ShellCluster, fault: PlannedFault) -> Undo:
    wires, unreachable = cluster.world.wires, cluster.world.store.unreachable
    if fault.to == "store":
        unreachable[fault.on] = unreachable.get(fault.on, 0) + 1

        def reach_again() -> None:
            unreachable[fault.on] -= 1

        return reach_again
    wires.block(fault.on, fault.to)
    return partial(wires.unblock, fault.on, fault.to)


def _unanswered(cluster: ShellCluster, fault: PlannedFault) -> Undo:
    wires = cluster.world.wires
    links = [wires.link(fault.on, fault.to), wires.link(fault.to, fault.on)]
    for link in links:
        link.unanswered = 0.4

    def undo() -> None:
        for link in links:
            link.unanswered = 0.0

    return undo


def _crash(cluster: ShellCluster, fault: PlannedFault) -> Undo | None:
    if cluster.end(fault.on, silent=fault.amount in (0.25, 3.0)) is None:
        return None
    host = cluster.hosts.by_name[fault.on]
    host.hold()
    if fault.kind is FaultKind.REPLACE:
        cluster.replace_worker(fault.on)
    return host.release


def _pause(cluster: ShellCluster, fault: PlannedFault) -> Undo | None:
    process = cluster.processes.get(fault.on)
    if process is None:
        return None
    cluster.pause(fault.on)
    return process.life.resume


def _slow(cluster: ShellCluster, fault: PlannedFault) -> Undo | None:
    process = cluster.processes.get(fault.on)
    if process is None:
        return None
    process.life.drag = fault.amount * _DRAG

    def undo() -> None:
        process.life.drag = 0.0

    return undo


def _slow_engine(cluster: ShellCluster, fault: PlannedFault) -> Undo | None:
    worker = cluster.processes.get(fault.on)
    if worker is None:
        return None
    machine = worker.machine
    machine.engine_drag = 10.0 * fault.amount

    def undo() -> None:
        machine.engine_drag = 1.0

    return undo


def _fail_pass(cluster: ShellCluster, fault: PlannedFault) -> None:
    worker = cluster.processes.get(fault.on)
    if worker is not None:
        worker.machine.pass_failures = 1


def _clock(cluster: ShellCluster, fault: PlannedFault) -> Undo | None:
    cluster.skews[fault.on] = cluster.skews.get(fault.on, 0.0) + fault.amount
    return _crash(cluster, fault)


def _store_away(cluster: ShellCluster, fault: PlannedFault) -> Undo:
    store = cluster.world.store
    if cluster.world.rng.random() < 0.5:  # its memory or disk is full
        store.is_full += 1

        def free() -> None:
            store.is_full -= 1

        return free
    store.is_away += 1

    def undo() -> None:
        store.is_away -= 1

    return undo


def _store_slow(cluster: ShellCluster, fault: PlannedFault) -> Undo:
    store = cluster.world.store
    store.extra_delay = fault.amount

    def undo() -> None:
        store.extra_delay = 0.0

    return undo


def _store_wiped(cluster: ShellCluster, fault: PlannedFault) -> None:
    cluster.world.store.wipe()


def _store_stale(cluster: ShellCluster, fault: PlannedFault) -> Undo:
    store = cluster.world.store
    if cluster.world.rng.random() < 0.3:  # a restart from an old snapshot
        cluster.world.hit("the store goes back to an old snapshot")
        store.snapshot()
        return store.restore
    store.freeze_replica()
    return store.thaw_replica


def _store_garbage(cluster: ShellCluster, fault: PlannedFault) -> None:
    for what in (_SCRIBBLES[int(fault.amount) % len(_SCRIBBLES)], "past:"):
        cluster.world.store.scribble(what)


def _usurp(cluster: ShellCluster, fault: PlannedFault) -> None:
    if any(scheduler.core is not None for scheduler in cluster.schedulers):
        cluster.world.hit("two lead for a moment")
    cluster.world.store.usurp()


def _drain(cluster: ShellCluster, fault: PlannedFault) -> None:
    cluster.drain(fault.on)


def _start(cluster: ShellCluster, fault: PlannedFault) -> None:
    cluster.start_worker(_ROLES[int(fault.amount) % len(_ROLES)])


def _role(cluster: ShellCluster, fault: PlannedFault) -> None:
    cluster.set_role(fault.on, _ROLES[int(fault.amount) % len(_ROLES)])


def _preset(cluster: ShellCluster, fault: PlannedFault) -> Undo | None:
    cluster.preset = sorted(PRESETS)[int(fault.amount) % len(PRESETS)]
    return _crash(cluster, fault)


def _start_fails(cluster: ShellCluster, fault: PlannedFault) -> Undo | None:
    failures = (1, NO_ROOM, 1)[: int(fault.amount)]
    if not fault.on:
        host = VirtualHost(failures)
        cluster.start_worker(Role(cluster.scenario.roles[0]), host)
        return host.failures.clear
    process = cluster.supervised(fault.on)
    if process is None or not process.address:  # who has never served would be given up
        return None
    host = cluster.hosts.by_name[fault.on]
    host.failures.extend(failures)
    cluster.end(fault.on)
    return host.failures.clear


def _start_slow(cluster: ShellCluster, fault: PlannedFault) -> None:
    role = _ROLES[int(fault.amount) % len(_ROLES)]
    cluster.start_worker(role, VirtualHost(seconds=fault.lasts))


def _drain_killed(cluster: ShellCluster, fault: PlannedFault) -> Undo:
    cluster.drain(fault.on)

    def kill() -> None:
        for worker in cluster.workers:
            if worker.is_draining:
                cluster.world.hit("a process dies while it drains")
                cluster.end(worker.name)

    return kill


_ACTS: dict[FaultKind, Callable[[ShellCluster, PlannedFault], Undo | None]] = {
    FaultKind.DELAY: _delay,
    FaultKind.CUT: _cut,
    FaultKind.HALF_OPEN: _cut,
    FaultKind.PARTITION: _partition,
    FaultKind.UNANSWERED: _unanswered,
    FaultKind.CRASH: _crash,
    FaultKind.REPLACE: _crash,
    FaultKind.PAUSE: _pause,
    FaultKind.SLOW: _slow,
    FaultKind.SLOW_ENGINE: _slow_engine,
    FaultKind.FAIL_PASS: _fail_pass,
    FaultKind.STORE_AWAY: _store_away,
    FaultKind.STORE_SLOW: _store_slow,
    FaultKind.STORE_WIPED: _store_wiped,
    FaultKind.STORE_STALE: _store_stale,
    FaultKind.STORE_GARBAGE: _store_garbage,
    FaultKind.USURP: _usurp,
    FaultKind.CLOCK: _clock,
    FaultKind.DRAIN: _drain,
    FaultKind.START: _start,
    FaultKind.ROLE: _role,
    FaultKind.PRESET: _preset,
    FaultKind.START_FAILS: _start_fails,
    FaultKind.START_SLOW: _start_slow,
    FaultKind.DRAIN_KILLED: _drain_killed,
}
