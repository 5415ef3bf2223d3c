"""Who leads: one at a time, another when it falls silent, and nobody gives up for silence."""

from __future__ import annotations

from headway.core.picker.lease import LeaseCandidate, LeaseSeen, LeaseStep


def _seen(holder: str, version: int = 1) -> LeaseSeen:
    return LeaseSeen(holder, str(version), 6.0)


def test_a_lease_that_is_not_there_or_nobodys_is_taken() -> None:
    candidate = LeaseCandidate("a")
    assert candidate.seen(None, now=0.0) is LeaseStep.CREATE
    assert candidate.seen(_seen(""), now=0.0) is LeaseStep.WRITE
    assert not candidate.leads
    candidate.wrote()
    assert candidate.leads


def test_a_lease_that_changes_in_time_is_its_holders() -> None:
    candidate = LeaseCandidate("a")
    for version in range(10):
        assert candidate.seen(_seen("b", version), now=5.0 * version) is LeaseStep.WAIT


def test_a_lease_runs_from_when_its_last_change_was_seen() -> None:
    candidate = LeaseCandidate("a")
    assert candidate.seen(_seen("b"), now=100.0) is LeaseStep.WAIT
    assert candidate.seen(_seen("b"), now=105.9) is LeaseStep.WAIT
    assert candidate.seen(_seen("b"), now=106.0) is LeaseStep.WRITE


def test_a_leader_is_one_until_it_sees_another() -> None:
    candidate = LeaseCandidate("a")
    candidate.wrote()
    assert candidate.seen(_seen("a"), now=1000.0) is LeaseStep.WRITE
    assert candidate.leads
    assert candidate.seen(_seen("b", 2), now=1001.0) is LeaseStep.WAIT
    assert not candidate.leads
