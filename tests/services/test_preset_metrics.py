"""Metrics that show what a preset does: preemptions by kind, moves by cause, γ."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import CollectorRegistry

from headway.cluster import UnitId
from headway.core.scheduler.core import SchedulerCore
from headway.core.scheduler.events import Chosen, Considered, Decision, SendToWorker
from headway.core.worker.room import Preemptions
from headway.cost.costs import Constant, Source
from headway.messages import MeasuredCosts, Tuned
from headway.request import StreamKey
from services.scheduler.metrics import SchedulerMetrics
from services.worker.metrics import WorkerMetrics
from tests.fakes.worker_core import CoreTotals


def decision(question: str) -> Decision:
    here, there = UnitId("d1", 0), UnitId("d2", 0)
    considered = (Considered(here, (2, 90), 5), Considered(there, (0, 0), 50))
    chosen = (Chosen(StreamKey("g", 1), "r", there, (3.0,), 0.0),)
    return Decision(question, 1.0, "m", "rule", considered, chosen, 0)


def test_moves_are_counted_by_cause_and_are_no_dispatches() -> None:
    registry = CollectorRegistry()
    metrics = SchedulerMetrics(lambda: None, registry)
    for question in ("rescheduling", "boundary", "boundary"):
        metrics.performed(decision(question))
    moves = "headway_scheduler_moves_total"
    assert registry.get_sample_value(moves, {"cause": "rescheduling"}) == 1
    assert registry.get_sample_value(moves, {"cause": "boundary"}) == 2
    assert registry.get_sample_value("headway_scheduler_dispatched_requests_total") == 0
    assert registry.get_sample_value("headway_scheduler_chunk_utilisation_count") == 0


def test_the_fitted_gamma_is_shown_by_both_ends() -> None:
    registry = CollectorRegistry()
    SchedulerMetrics(lambda: None, registry).performed(SendToWorker("d1", Tuned(0.25)))
    WorkerMetrics(registry, CoreTotals(), "m", 64, 16).heard(Tuned(0.25))
    assert registry.get_sample_value("headway_scheduler_gamma_per_s") == 0.25
    assert registry.get_sample_value("headway_worker_gamma_per_s") == 0.25


def test_requests_that_are_held_back_are_shown_by_the_leader() -> None:
    registry = CollectorRegistry()
    SchedulerMetrics(lambda: replace(SchedulerCore().status(), num_held_back=3), registry)
    assert registry.get_sample_value("headway_scheduler_held_back_requests") == 3


def test_a_worker_shows_what_it_measured_and_what_it_decides_by() -> None:
    registry = CollectorRegistry()
    counts = CoreTotals(constants=(Constant("swap", 2e-6, Source.MEASURED),))
    WorkerMetrics(registry, counts, "m", 64, 16)
    costs = "headway_worker_measured_costs"
    assert registry.get_sample_value(costs, {"cost": "per_request"}) is None
    counts.measured_costs = MeasuredCosts(per_request=1e-4)
    assert registry.get_sample_value(costs, {"cost": "per_request"}) == 1e-4
    labels = {"constant": "swap", "source": "measured"}
    assert registry.get_sample_value("headway_worker_decision_constants", labels) == 2e-6


def test_preemptions_are_counted_by_kind() -> None:
    registry = CollectorRegistry()
    counts = CoreTotals(Preemptions(2, 1))
    WorkerMetrics(registry, counts, "m", 64, 16)
    name = "headway_worker_preemptions_total"
    assert registry.get_sample_value(name, {"kind": "voluntary"}) == 2
    counts.preemptions.num_voluntary += 1
    assert registry.get_sample_value(name, {"kind": "voluntary"}) == 3
    assert registry.get_sample_value(name, {"kind": "forced"}) == 1
