"""Bugs put back into cores and shells are found, and what finds them shrinks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from headway.core.gateway.events import Delivery
from headway.core.gateway.order import Intake
from headway.core.gateway.state import OpenRequest
from headway.core.scheduler.memory import LeaderMemory
from headway.core.scheduler.state import SchedulerState
from headway.core.worker import arrivals, departures
from headway.core.worker.events import StartTransfer, WorkerAction
from headway.core.worker.reports import Reports
from headway.core.worker.sequence import Sequence as Running
from headway.core.worker.state import WorkerState
from headway.messages import KvHeader
from proof.vopr.campaign import STANDARD
from proof.vopr.draw import draw
from proof.vopr.history import History, run
from proof.vopr.scenario import Asking, FaultKind, PlannedFault, SeedScenario, WorkerShape, parse
from proof.vopr.shrink import shrink, smallest
from services.runtime import store_scripts

Mutate = Callable[[pytest.MonkeyPatch], None]


def takes_kv_of_a_deposed_leader(patch: pytest.MonkeyPatch) -> None:
    """The leader bug: a target did not ask which leader had ordered a handoff."""
    answer_offer = arrivals.answer_offer

    def mutant(state: WorkerState, header: KvHeader) -> WorkerAction:
        token, state.fencing_token = state.fencing_token, 0
        try:
            return answer_offer(state, header)
        finally:
            state.fencing_token = token

    patch.setattr(arrivals, "answer_offer", mutant)


def frees_blocks_before_the_target_has_them(patch: pytest.MonkeyPatch) -> None:
    leave = departures.leave

    def mutant(state: WorkerState, sequence: Running) -> StartTransfer:
        start = leave(state, sequence)
        state.units[sequence.unit].pool.release(sequence.kv.blocks)
        return start

    patch.setattr(departures, "leave", mutant)


def delivers_repeats(patch: pytest.MonkeyPatch) -> None:
    out_of_order = Intake._out_of_order

    def mutant(self: Intake, state: OpenRequest, index: int, token: Delivery) -> None:
        if index < len(state.output) and token.finish_reason is None:
            self.deliveries.append(token)
        else:
            out_of_order(self, state, index, token)

    patch.setattr(Intake, "_out_of_order", mutant)


def says_nothing_of_what_a_worker_lost(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: SchedulerState, keys: Sequence[Any], reason: str, **named: Any) -> None:
        for key in keys:
            self.end(key)

    patch.setattr(SchedulerState, "lose", mutant)


def trusts_a_broken_stream(patch: pytest.MonkeyPatch) -> None:
    """What had just ended for a gateway whose stream broke was not doubted."""
    patch.setattr(Reports, "doubt", lambda *args, **named: None)


def gives_one_token_twice(patch: pytest.MonkeyPatch) -> None:
    """A store that had gone back to an old snapshot began from its clock's seconds."""
    by_seconds = store_scripts.ACQUIRE.replace(" + tonumber(clock[2])", "").replace(" + drawn", "")
    patch.setattr(store_scripts, "ACQUIRE", by_seconds)


def waits_for_no_silent_worker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderMemory, "_unheard", lambda self, request: set())


def keeps_what_nobody_confirms(patch: pytest.MonkeyPatch) -> None:
    """Records of an earlier leader's requests stayed in the store."""

    def mutant(self: LeaderMemory, *, now: float) -> None:
        if now >= self._until:
            self._saved.clear()

    patch.setattr(LeaderMemory, "expire", mutant)


def a_silent_worker() -> SeedScenario:
    """The next leader does not hear for a while what a worker runs."""
    cut = [PlannedFault(FaultKind.PARTITION, 1.2, 3.0, name, "w0") for name in ("s0", "s1")]
    return SeedScenario(
        0,
        roles=("unified", "unified"),
        shape=WorkerShape(num_blocks=60, pass_seconds=0.05),
        requests=tuple(Asking(f"r{n}", 1.0, 0, 6, 0, 40) for n in range(6)),
        faults=(*cut, PlannedFault(FaultKind.USURP, 1.3)),
    )


def half_open_streams() -> SeedScenario:
    """Streams between a worker and its gateway break all the time, and one side learns late."""
    requests = [Asking(f"r{n}", 0.3 + 0.15 * n, 0, 6, 0, 12) for n in range(20)]
    faults = [PlannedFault(FaultKind.HALF_OPEN, 0.5 + 0.12 * n, 0.0, "w0", "g0") for n in range(20)]
    return SeedScenario(0, "vllm-like", 1, 1, requests=tuple(requests), faults=tuple(faults))


MUTANTS: dict[Mutate, tuple[str, SeedScenario]] = {
    takes_kv_of_a_deposed_leader: ("one fencing owner", draw(3)),
    frees_blocks_before_the_target_has_them: ("a token differs", draw(3)),
    delivers_repeats: ("a token differs", draw(428)),
    says_nothing_of_what_a_worker_lost: ("faults are over", draw(35)),
    trusts_a_broken_stream: ("faults are over", half_open_streams()),
    gives_one_token_twice: ("one fencing owner", draw(67)),
    waits_for_no_silent_worker: ("one worker at a time", a_silent_worker()),
    keeps_what_nobody_confirms: ("the journal is empty", draw(5)),
}
"""Each bug with the promise it breaks, and a scenario in whose history it shows."""


def find(rule: str, scenario: SeedScenario) -> History | None:
    """Return a history that breaks the promise: this one, or another of the standard ones."""
    others = (draw(seed) for seed in STANDARD)
    histories = (run(each) for each in chain((scenario,), others))
    return next((h for h in histories if h.violations and rule in h.violations[0]), None)


@pytest.mark.parametrize("scenario", [half_open_streams(), a_silent_worker()])
def test_what_shows_a_bug_breaks_no_promise_without_it(scenario: SeedScenario) -> None:
    assert run(scenario).violations == []


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_a_bug_put_back_is_found(mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    assert find(*MUTANTS[mutate]) is not None


def test_a_failing_history_shrinks_to_a_scenario_that_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    delivers_repeats(monkeypatch)
    found = find(*MUTANTS[delivers_repeats])
    assert found is not None
    small = shrink(found, most_runs=20)
    before, after = found.scenario, small.scenario
    assert len(after.requests) + len(after.faults) < len(before.requests) + len(before.faults)
    assert run(parse(after.text())).rules == small.rules


def test_shrinking_keeps_exactly_what_fails() -> None:
    assert list(smallest(range(40), lambda kept: {7, 23} <= set(kept))) == [7, 23]
