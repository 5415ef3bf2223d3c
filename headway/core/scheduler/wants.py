"""Reports that a scheduler asks of its workers, for its policies to read."""

from __future__ import annotations

from math import inf

from headway.core.scheduler.settings import SchedulerSettings
from headway.messages import WantedReports
from headway.policies import registry
from headway.policies.dispatch import Dispatching
from headway.policies.placement import Placement
from headway.policies.rescheduling import Rescheduling

_LOADS_EVERY = 1.0  # seconds


def wanted_reports(settings: SchedulerSettings) -> WantedReports:
    """Return what the policies declare that they read."""
    dispatching: Dispatching = registry.make(
        "dispatch", settings.dispatch, **settings.dispatch_params
    )
    placement: Placement = registry.make(
        "placement", settings.placement, **settings.placement_params
    )
    rescheduling: Rescheduling = registry.make(
        "rescheduling", settings.rescheduling, **settings.rescheduling_params
    )
    moves = rescheduling.interval < inf
    return WantedReports(
        phases=dispatching.reads_phases or placement.reads_phases,
        load_interval=min(_LOADS_EVERY, rescheduling.interval / 2) if moves else inf,
        num_steps=rescheduling.horizon.num_steps,
        step_tokens=rescheduling.horizon.step_tokens,
        lengths=rescheduling.reads_lengths,
        work=settings.measures_work,
    )
