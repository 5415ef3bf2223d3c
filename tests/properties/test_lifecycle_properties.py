"""Whatever happens to two workers, requests follow the table of stages, and blocks have owners."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.gateway import streams
from headway.core.worker import lifecycle
from headway.core.worker.events import PassFailed
from headway.core.worker.lifecycle import TRANSITIONS, Event, Stage
from headway.core.worker.sequence import Sequence
from headway.core.worker.unit import WorkerUnit
from tests.fakes.paged import WorkerHarness
from tests.fakes.worker_pair import WorkerPair, steps

STEPS = st.lists(steps(), max_size=60)
HAS_BLOCKS = {
    Stage.WAITING: False,
    Stage.SWAPPING_OUT: False,
    Stage.SWAPPING_IN: True,
    Stage.RUNNING: True,
    Stage.PREFILLED: True,
}
"""Stages that settle whether a request has blocks; in other stages it may or may not."""
HAS_DEPARTURE = {Stage.PREFILLED: False, Stage.LEAVING: True, Stage.ARRIVING: False}
IS_OVER = dict.fromkeys(Stage, False) | {Stage.ENDING: True}
"""Stages that settle whether a request has ended; during a transfer it may or may not."""
del IS_OVER[Stage.LEAVING], IS_OVER[Stage.ARRIVING], IS_OVER[Stage.GONE]


def reachable(stage: Stage) -> set[Stage]:
    """Return the stages that the table leads to from this one."""
    found: set[Stage] = set()
    edge = {stage}
    while edge:
        edge = {b for (a, _), b in TRANSITIONS.items() if a in edge} - found
        found |= edge
    return found | {stage}


REACHABLE = {stage: reachable(stage) for stage in Stage}


class Pair(WorkerPair):
    """Two workers, and the last stage of each request."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(blocks=12, **settings)
        self.seen: dict[int, tuple[Sequence, Stage]] = {}

    def fail(self, worker: WorkerHarness, which: int) -> None:
        """Fail the oldest pass, and with it one that was planned behind it."""
        failed = list(worker.passes)
        worker.passes.clear()
        for each in failed:
            keys = tuple(item.key for item in each.items[:which])
            worker.post(PassFailed(each.pass_id, keys, "out of memory"))

    def check(self) -> None:
        for worker in self.workers:
            for unit in worker.core.units:
                for sequence in unit.sequences.values():
                    self.seen.setdefault(id(sequence), (sequence, sequence.stage))
                    check_parts(sequence)
                check_blocks(unit)
        for name, (sequence, before) in self.seen.items():
            assert sequence.stage in REACHABLE[before]
            self.seen[name] = sequence, sequence.stage
        held = {id(s) for w in self.workers for u in w.core.units for s in u.sequences.values()}
        assert all((s.stage is Stage.GONE) == (id(s) not in held) for s, _ in self.seen.values())


def check_parts(sequence: Sequence) -> None:
    """A request has the parts that its stage says, and stays for something."""
    stage, departure = sequence.stage, sequence.departure
    assert bool(sequence.kv.blocks) == HAS_BLOCKS.get(stage, bool(sequence.kv.blocks))
    assert (departure is not None) == HAS_DEPARTURE.get(stage, departure is not None)
    assert (sequence.ended is not None) == IS_OVER.get(stage, sequence.ended is not None)
    assert not (sequence.kv.blocks and sequence.kv.host_blocks)
    if stage is Stage.ENDING:
        assert sequence.num_passes or departure is not None
    if stage not in (Stage.RUNNING, Stage.SWAPPING_IN, Stage.ENDING):
        assert sequence.num_passes == 0


def check_blocks(unit: WorkerUnit) -> None:
    """No block is held by two requests; a round under way shares those of its own request."""
    owners: Counter[int] = Counter()
    for sequence in unit.sequences.values():
        sent = sequence.departure.sending if sequence.departure is not None else []
        owners.update(set(sequence.kv.blocks) | set(sent))
    assert all(count == 1 for count in owners.values())
    assert len(owners) + unit.pool.num_free == unit.pool.num_blocks
    hosted = [b for s in unit.sequences.values() for b in s.kv.host_blocks]
    assert len(hosted) == len(set(hosted))


@settings(max_examples=300, deadline=None)
@given(
    steps=STEPS,
    host_tokens=st.sampled_from([0, 24, 200]),
    rounds=st.integers(0, 2),
    runs_ahead=st.booleans(),
    swaps_beside=st.booleans(),
)
def test_requests_follow_the_table_and_blocks_have_one_owner(
    steps: list[tuple[str, int, int]],
    host_tokens: int,
    rounds: int,
    runs_ahead: bool,
    swaps_beside: bool,
) -> None:
    pair = Pair(
        host_tokens=host_tokens,
        move_rounds=rounds,
        runs_ahead=runs_ahead,
        swaps_beside=swaps_beside,
    )
    for step in steps:
        pair.step(*step)
        pair.check()


def test_every_stage_but_the_last_leads_to_the_last() -> None:
    assert all(Stage.GONE in REACHABLE[stage] for stage in Stage)
    assert {event for _, event in TRANSITIONS} == set(Event)
    assert len(Stage) <= 9


@pytest.mark.parametrize(
    ("table", "fields"), [(lifecycle, ("stage", "ended")), (streams, ("stage", "due_at"))]
)
def test_only_the_table_s_own_file_changes_a_stage(
    table: ModuleType, fields: tuple[str, ...]
) -> None:
    own = Path(str(table.__file__))
    for path in own.parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                assert path == own or node.attr not in fields
