"""The worker's core: what it hands back, whom it tells of, and another role."""

from __future__ import annotations

from dataclasses import replace

from headway.cluster import Role
from headway.core.worker.lifecycle import Stage
from headway.messages import (
    CancelStream,
    ChangeRole,
    Drain,
    EndForward,
    GiveBack,
    HandedBack,
    Handoff,
    HandoffResult,
    Snapshot,
)
from headway.policies.batching.fcfs import Fcfs
from headway.request import StreamKey
from tests.fakes.paged import WorkerHarness, expected_output
from tests.fakes.worker_core import crowded, dispatch, make_request, make_worker, output_of


def key(stream_id: int) -> StreamKey:
    return StreamKey("g", stream_id)


def handed_back(worker: WorkerHarness) -> list[int]:
    return [k.stream_id for a in worker.log if isinstance(a, HandedBack) for k in a.keys]


def told(worker: WorkerHarness) -> list[int]:
    reports = [a for a in worker.log if isinstance(a, EndForward)]
    return [h.key.stream_id for r in reports for h in r.prefilled if h.decoding]


def test_it_hands_back_what_it_has_not_begun_and_computes_the_rest() -> None:
    worker = make_worker(Role.PREFILL, chunk=6)
    worker.post(dispatch(make_request(1, prompt=6)))
    worker.post(dispatch(make_request(2, prompt=6), dispatch_id=2))
    worker.post(GiveBack((key(1), key(2), key(3))))
    assert handed_back(worker) == [2]
    worker.run_pass()
    assert worker.core.num_held == 1
    assert worker.core.loads[0].queued_prefill_tokens == 0


def test_what_has_lost_its_blocks_has_begun_and_is_not_handed_back() -> None:
    worker = crowded(0)
    while not worker.core.loads[0].lost_tokens:
        assert worker.run_pass()
    worker.post(GiveBack((key(1), key(2))))
    assert handed_back(worker) == []
    worker.run_all()
    assert len(output_of(worker, 2)) == 14


def test_a_drain_says_who_can_move_and_tells_of_the_others_when_they_can() -> None:
    worker = make_worker(Role.UNIFIED, chunk=6)
    worker.post(dispatch(make_request(1, prompt=6, max_tokens=20)))
    worker.run_pass()
    worker.post(dispatch(make_request(2, prompt=10, max_tokens=20), dispatch_id=2))
    worker.post(Drain())
    snapshot = next(a for a in reversed(worker.log) if isinstance(a, Snapshot))
    assert {h.key.stream_id: h.decoding for h in snapshot.held} == {1: True, 2: False}
    worker.run_all()
    assert sorted(told(worker)) == [1, 2]  # once each


def test_a_worker_serves_decoding_first_while_it_is_convertible() -> None:
    worker = make_worker(Role.UNIFIED, batching=Fcfs())
    late = replace(make_request(1, prompt=2, max_tokens=30), arrival_at=2.0)
    worker.post(dispatch(late))
    worker.run_pass()
    early = replace(make_request(2, prompt=100, max_tokens=2), arrival_at=1.0)
    worker.post(dispatch(early, dispatch_id=2))
    worker.run_pass()  # the pass that was in flight
    served = []
    for role in (Role.UNIFIED, Role.CONVERTIBLE, Role.UNIFIED):
        worker.post(ChangeRole(role))
        worker.run_pass()  # planned before the change
        served.append([item.key.stream_id for item in worker.passes[0].items])
    assert served == [[2], [1, 2], [2]]
    worker.run_all()


def test_a_pass_has_the_chunk_of_the_role() -> None:
    worker = make_worker(Role.UNIFIED, chunk=8, own_chunks=(24, 4))
    worker.post(dispatch(make_request(1, prompt=100, max_tokens=2)))
    worker.run_pass()  # the next one is planned
    computed = []
    for role in (Role.PREFILL, Role.CONVERTIBLE, Role.UNIFIED):
        worker.post(ChangeRole(role))
        worker.run_pass()
        computed.append(len(worker.passes[0].items[0].token_ids))
    assert computed == [24, 4, 8]


def test_it_says_whose_prompt_is_computed_whatever_role_it_took_meanwhile() -> None:
    """The leader knows these prompts of when it was unified, and it may be so again."""
    for role in (Role.DECODE, Role.PREFILL):
        worker = make_worker(Role.UNIFIED, chunk=8)
        worker.post(dispatch(make_request(1, prompt=22, max_tokens=4)))
        worker.run_pass()
        worker.post(ChangeRole(role))
        worker.run_all()
        said = [each for each in worker.log if isinstance(each, EndForward)]
        assert [each.stream_id for report in said for each in report.begun] == [1]


def test_it_hands_nothing_off_to_itself() -> None:
    worker = make_worker(Role.DECODE)
    worker.post(dispatch(make_request(1, prompt=6, max_tokens=5)))
    worker.run_pass()
    worker.post(Handoff(key(1), "w", "w:1", 0, 1))
    worker.run_all()
    results = [a for a in worker.log if isinstance(a, HandoffResult)]
    assert [(r.ok, r.retriable) for r in results] == [(False, False)]
    assert output_of(worker, 1) == expected_output(range(2, 8), 5)


def test_a_prompt_cached_but_for_its_last_token_goes_when_that_is_computed() -> None:
    worker = make_worker(Role.PREFILL, blocks=64, prefix_caching=True, move_rounds=2)
    worker.model.shared = True
    worker.post(dispatch(make_request(1, prompt=9)))
    worker.run_pass()
    worker.post(Drain())
    again = replace(make_request(1, prompt=9), stream_id=2, request_id="r2")
    worker.post(dispatch(again, dispatch_id=2))
    worker.post(GiveBack(()))
    worker.post(Handoff(again.key, "other", "other:1", 0, 1))  # it is not there yet
    worker.run_pass()
    assert worker.core.units[0].sequences[again.key].stage is Stage.PREFILLED
    worker.post(CancelStream(again.key))
    assert again.key not in worker.core.units[0].sequences
