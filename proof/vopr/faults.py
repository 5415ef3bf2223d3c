"""What each kind of fault does to a cluster, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from headway.cluster import Role
from headway.presets import PRESETS
from proof.vopr.cluster import SimulatedCluster
from proof.vopr.scenario import FaultKind, PlannedFault
from proof.vopr.worker import WorkerProcess

Undo = Callable[[], None]
_ROLES = (Role.UNIFIED, Role.PREFILL, Role.DECODE, Role.UNIFIED)
_SCRIBBLES = ("leader", "members", "journal")


def plan(cluster: SimulatedCluster) -> None:
    """Plan all faults of the scenario, each with its end."""
    for fault in cluster.scenario.faults:
        cluster.world.kernel.at(fault.at, partial(_strike, cluster, fault))


def _strike(cluster: SimulatedCluster, fault: PlannedFault) -> None:
    world = cluster.world
    world.happened(f"fault {fault}")
    world.hit(f"fault: {fault.kind.name}")
    undo = _ACTS[fault.kind](cluster, fault)
    if undo is not None:
        world.kernel.after(fault.lasts, undo)


# --- links ------------------------------------------------------------------------------


def _delay(cluster: SimulatedCluster, fault: PlannedFault) -> Undo:
    network = cluster.world.network
    pairs = [(fault.on, fault.to), (fault.to, fault.on)]
    for pair in pairs:
        link = network.link(*pair)
        link.extra_delay, link.jitter = fault.amount / 2, fault.amount

    def undo() -> None:
        for pair in pairs:
            link = network.link(*pair)
            link.extra_delay = link.jitter = 0.0

    return undo


def _cut(cluster: SimulatedCluster, fault: PlannedFault) -> None:
    half_open = fault.kind is FaultKind.HALF_OPEN
    cluster.world.network.cut(fault.on, fault.to, half_open=half_open)


def _partition(cluster: SimulatedCluster, fault: PlannedFault) -> Undo:
    network, unreachable = cluster.world.network, cluster.world.store.unreachable
    if fault.to == "store":
        unreachable[fault.on] = unreachable.get(fault.on, 0) + 1

        def reach_again() -> None:
            unreachable[fault.on] -= 1

        return reach_again
    network.block(fault.on, fault.to)
    return partial(network.unblock, fault.on, fault.to)


def _double(cluster: SimulatedCluster, fault: PlannedFault) -> Undo:
    network = cluster.world.network
    pairs = [(fault.on, fault.to), (fault.to, fault.on)]
    for pair in pairs:
        network.link(*pair).doubling = 0.4

    def undo() -> None:
        for pair in pairs:
            network.link(*pair).doubling = 0.0

    return undo


# --- processes --------------------------------------------------------------------------


def _crash(cluster: SimulatedCluster, fault: PlannedFault) -> Undo | None:
    new_id = fault.kind is FaultKind.REPLACE
    if cluster.end(fault.on, silent=fault.amount in (0.25, 3.0)) is None:
        return None

    def undo() -> None:
        if fault.on not in cluster.processes and cluster.is_wanted(fault.on):
            cluster.start(fault.on, new_id=new_id)

    return undo


def _pause(cluster: SimulatedCluster, fault: PlannedFault) -> Undo | None:
    process = cluster.processes.get(fault.on)
    if process is None:
        return None
    cluster.pause(fault.on)
    return process.resume


def _slow(cluster: SimulatedCluster, fault: PlannedFault) -> Undo | None:
    process = cluster.processes.get(fault.on)
    if process is None:
        return None
    process.drag = fault.amount

    def undo() -> None:
        process.drag = 0.0

    return undo


def _slow_engine(cluster: SimulatedCluster, fault: PlannedFault) -> Undo | None:
    worker = cluster.processes.get(fault.on)
    if not isinstance(worker, WorkerProcess):
        return None
    worker.engine_drag = 10.0 * fault.amount

    def undo() -> None:
        worker.engine_drag = 1.0

    return undo


def _fail_pass(cluster: SimulatedCluster, fault: PlannedFault) -> None:
    worker = cluster.processes.get(fault.on)
    if isinstance(worker, WorkerProcess):
        worker.pass_failures = 1


def _clock(cluster: SimulatedCluster, fault: PlannedFault) -> Undo | None:
    cluster.skews[fault.on] = cluster.skews.get(fault.on, 0.0) + fault.amount
    return _crash(cluster, fault)


# --- the store --------------------------------------------------------------------------


def _store_away(cluster: SimulatedCluster, fault: PlannedFault) -> Undo:
    store = cluster.world.store
    store.is_away += 1

    def undo() -> None:
        store.is_away -= 1

    return undo


def _store_slow(cluster: SimulatedCluster, fault: PlannedFault) -> Undo:
    store = cluster.world.store
    store.extra_delay = fault.amount

    def undo() -> None:
        store.extra_delay = 0.0

    return undo


def _store_wiped(cluster: SimulatedCluster, fault: PlannedFault) -> None:
    cluster.world.store.wipe()


def _store_stale(cluster: SimulatedCluster, fault: PlannedFault) -> Undo:
    cluster.world.store.freeze_replica()
    return cluster.world.store.thaw_replica


def _store_garbage(cluster: SimulatedCluster, fault: PlannedFault) -> None:
    cluster.world.store.scribble(_SCRIBBLES[int(fault.amount) % len(_SCRIBBLES)])


def _usurp(cluster: SimulatedCluster, fault: PlannedFault) -> None:
    if any(scheduler.term is not None for scheduler in cluster.schedulers):
        cluster.world.hit("two lead for a moment")
    cluster.world.store.usurp()


# --- the operator -----------------------------------------------------------------------


def _drain(cluster: SimulatedCluster, fault: PlannedFault) -> None:
    cluster.drain(fault.on)


def _start(cluster: SimulatedCluster, fault: PlannedFault) -> None:
    cluster.start_worker(_ROLES[int(fault.amount) % len(_ROLES)])


def _role(cluster: SimulatedCluster, fault: PlannedFault) -> None:
    cluster.set_role(fault.on, _ROLES[int(fault.amount) % len(_ROLES)])


def _preset(cluster: SimulatedCluster, fault: PlannedFault) -> Undo | None:
    cluster.use_preset(sorted(PRESETS)[int(fault.amount) % len(PRESETS)])
    return _crash(cluster, fault)


_ACTS: dict[FaultKind, Callable[[SimulatedCluster, PlannedFault], Undo | None]] = {
    FaultKind.DELAY: _delay,
    FaultKind.CUT: _cut,
    FaultKind.HALF_OPEN: _cut,
    FaultKind.PARTITION: _partition,
    FaultKind.DOUBLE: _double,
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
}
