"""Promises that hold at every moment inside the cores, and those that hold at rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Protocol

from headway.blocks import BlockPool
from headway.core.worker.core import WorkerCore
from headway.core.worker.lifecycle import Stage
from headway.core.worker.sequence import Sequence
from headway.core.worker.unit import WorkerUnit
from headway.request import Request, StreamKey
from proof.vopr.scenario import BLOCK_SIZE

REMEMBERED = frozenset(
    {
        "_doubted",  # the last ended attempts of gateways whose streams broke, bounded
        "_ended",  # the last ended attempts, of the scheduler and of a worker, bounded
        "_finished",  # of an instance: its last finished requests, bounded
        "_paid",  # outputs that the last cancelled requests were charged for, bounded
        "_unreported",  # who pays for the last ended attempts, bounded
        "decisions",  # the last explanations, bounded
        "_waits_since",  # of SBS's warm rule, dropped as those of the next
        "_untelling",  # of a window, those who are gone dropped once they are the majority
        "_hashes",  # names of cached blocks
        "_cached",
        "_due",  # of ranks that hold until an instant, dropped when it has passed
        "_deadlines",  # of the window, compacted when most are of requests that have left
        "released",  # of a worker's unit: what the next pass tells the engine of
    }
)
"""Attributes of the cores that may name a request after its end; each is bounded."""
_COULD_RUN = {Stage.RUNNING, Stage.WAITING}
_PLAIN = (int, float, str, bytes, bool, type(None))
_NAMES_A_REQUEST = (StreamKey, Request, Sequence)
_ABSENT = object()


class Judge(Protocol):
    """What ends a history whose promises are broken."""

    def require(self, holds: bool, rule: str, detail: str = "") -> None:
        """End the history unless a promise holds."""


# --- at every moment --------------------------------------------------------------------


def check_blocks(world: Judge, name: str, core: WorkerCore) -> None:
    """Require that the block books of every unit of a worker add up."""
    for unit in core.units:
        problem = problem_of_blocks(unit)
        world.require(not problem, "no block leaks or is shared wrongly", f"{name} {problem}")


def check_runs(world: Judge, name: str, core: WorkerCore) -> None:
    """Require that a worker computes unless all that it holds waits for others."""
    if core._flights or core.next_wakeup is not None:
        return
    for unit in core.units:
        if any(sequence.departure is not None for sequence in unit.sequences.values()):
            continue  # blocks that are being sent come back
        stages = {sequence.stage for sequence in unit.sequences.values()}
        detail = f"unit {unit.unit} of {name} has {len(unit.sequences)} requests and runs none"
        world.require(not stages or not stages <= _COULD_RUN, "no worker stands idle", detail)


def problem_of_blocks(unit: WorkerUnit) -> str:
    """Return what is wrong with the block books of a unit; "" for nothing."""
    pool, host = unit.pool, unit.host
    refs: Counter[int] = Counter()
    num_host = 0
    for sequence in unit.sequences.values():
        refs.update(sequence.kv.blocks)
        num_host += len(sequence.kv.host_blocks)
        if sequence.departure is not None:
            refs.update(sequence.departure.sending)
    for copy in unit.saving:
        refs.update(copy.blocks)
    first = unit.unit * pool.num_blocks
    for place, count in enumerate(pool._refs):
        if refs[first + place] != count:
            return f"block {first + place} has {count} references and {refs[first + place]} owners"
    num_used = len(refs)
    if num_used + pool.num_free != pool.num_blocks:
        return f"{num_used} blocks used and {pool.num_free} free of {pool.num_blocks}"
    most = unit._settings.host_tokens // BLOCK_SIZE
    num_host += host.prefixes.num_busy
    if num_host + host.num_free + len(host._leaving) != most:
        return f"{num_host} host blocks used and {host.num_free} free of {most}"
    return _problem_of_sharing(unit, refs, pool)


def _problem_of_sharing(unit: WorkerUnit, refs: Counter[int], pool: BlockPool) -> str:
    """Return a block that two requests share although their tokens there differ."""
    if not any(count > 1 for count in refs.values()):
        return ""
    seen: dict[int, tuple[Sequence, int]] = {}
    for sequence in unit.sequences.values():
        for place, block in enumerate(sequence.kv.blocks):
            if refs[block] < 2:
                continue
            other = seen.setdefault(block, (sequence, place))
            stop = (place + 1) * BLOCK_SIZE
            if other[0] is sequence and other[1] == place:
                continue
            if other[1] != place or _beginning(other[0], stop) != _beginning(sequence, stop):
                return f"block {block} is shared by {other[0].key} and {sequence.key}"
    return ""


def _beginning(sequence: Sequence, stop: int) -> tuple[int, ...]:
    return tuple(sequence.tokens(0, stop))


# --- at rest ------------------------------------------------------------------------------


def remembered_requests(core: Any) -> Iterator[str]:
    """Yield the path of everything in a core that names a request; at rest there is none."""
    seen: set[int] = set()
    stack: list[tuple[str, Any]] = [("", core)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, _NAMES_A_REQUEST):
            yield f"{path}: {value!r:.120}"
            continue
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        stack += [(f"{path}.{name}", part) for name, part in _parts(value)]


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, held in value.items():
            yield f"[{key!r:.40}]", key
            yield f"[{key!r:.40}]", held
    elif isinstance(value, list | tuple | set | frozenset) or type(value).__name__ == "deque":
        for place, held in enumerate(value):
            yield f"[{place}]", held
    elif type(value).__module__.startswith("headway."):
        kind: Any = type(value)
        for name in (*_slots_of(kind), *getattr(value, "__dict__", ())):
            if name not in REMEMBERED and (held := getattr(value, name, _ABSENT)) is not _ABSENT:
                yield name, held


@cache
def _slots_of(kind: type) -> list[str]:
    return [name for each in kind.__mro__ for name in getattr(each, "__slots__", ())]
