"""Runs a preset over views, and says what cannot be had that way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import cast

from headway.cluster import Role
from headway.errors import Code, HeadwayError
from headway.policies import registry
from headway.policies.dispatch import Dispatching
from headway.policies.placement import Placement
from headway.sim.clients import SimRequest
from headway.sim.collection import SeldomCollected
from headway.sim.experiment import Run
from headway.sim.failures import Failure
from headway.sim.planning import HEADWAY
from headway.sim.records import Record
from headway.sim.spec import ClusterSpec
from headway.sim.views.cluster import FIRST_COME, ViewCluster

ORDERS = ("headway", "uniboost")
"""Batching policies that only order prompts while memory suffices."""


def require_views(spec: ClusterSpec, failures: Sequence[Failure] = ()) -> None:
    """Refuse what only the cores simulate: HeadwayError with the reasons."""
    reasons = list(missing_from_views(spec, failures))
    if reasons:
        message = (
            f"the fidelity `policies` does not have {', nor '.join(reasons)}: simulate this with "
            "--fidelity cores"
        )
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="fidelity")


def missing_from_views(spec: ClusterSpec, failures: Sequence[Failure] = ()) -> Iterable[str]:
    """Yield what only the cores simulate; nothing where views do."""
    settings = spec.scheduler
    dispatch = registry.find("dispatch", settings.dispatch).make
    placement = registry.find("placement", settings.placement).make
    order = spec.batching.name
    if order not in (FIRST_COME, *ORDERS):
        yield f"the order of batching {order}, which ranks requests in each pass"
    elif order != FIRST_COME and any(k.role is Role.UNIFIED for k, _ in spec.instances):
        yield f"unified instances in the order of batching {order}, which puts prompts anywhere"
    if cast("type[Placement]", placement).reads_phases:
        yield f"the readers that placement {settings.placement} reads"
    if cast("type[Dispatching]", dispatch).reads_phases:
        yield f"the readers that dispatch {settings.dispatch} reads"
    if spec.scaling is not None:
        yield "instances that come and go by an autoscaler"
    if spec.network.costs.cores:
        yield "instances on one host's cores"
    if spec.pace is not None:
        yield "a machine's pace"
    if spec.prediction_seconds:
        yield "predictions that take time (predictor.seconds_per_request)"
    if spec.worker.max_running:
        yield f"a limit of {spec.worker.max_running} running requests"
    if any(kind.planner != HEADWAY for kind, _ in spec.instances):
        yield "engines that plan their own passes"
    if failures:
        yield "instances that die"


def simulate_views(
    spec: ClusterSpec,
    requests: Iterable[SimRequest],
    *,
    until: float = 1e9,
    ended: Callable[[Record], None] | None = None,
) -> Run:
    """Run as ``experiment.simulate`` does, by the same policies over views.

    Records have no instants between the first and the last token. HeadwayError as
    ``require_views``, and for requests with prefix hashes.
    """
    require_views(spec)
    records: list[Record] = []
    cluster = ViewCluster(spec, ended or records.append)
    with SeldomCollected():
        cluster.run(requests, until)
    ended_at, instances = cluster.ended_at, cluster.instances
    gpu_seconds = sum(each.spec.profile.num_gpus for each in instances) * ended_at
    num_passes = sum(each.num_passes for each in instances)
    num_preemptions = sum(unit.num_preemptions for each in instances for unit in each.units)
    return Run(records, [], ended_at, gpu_seconds, num_passes, num_preemptions)
