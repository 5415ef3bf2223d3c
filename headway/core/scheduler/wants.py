"""What a scheduler asks its workers to report, for its policies to read."""

from __future__ import annotations

from math import inf

from headway.core.scheduler.settings import SchedulerSettings
from headway.messages import WantedReports
from headway.policies import registry

_LOADS_EVERY = 1.0  # seconds


def wanted_reports(settings: SchedulerSettings) -> WantedReports:
    """Phases where PASCAL decides, running requests where a policy moves them, and the passes."""
    policy = registry.make("rescheduling", settings.rescheduling, **settings.rescheduling_params)
    moves = policy.interval < inf
    return WantedReports(
        phases="pascal" in (settings.placement, settings.dispatch_params.get("rule")),
        load_interval=min(_LOADS_EVERY, policy.interval / 2) if moves else inf,
        num_steps=policy.horizon.num_steps,
        step_tokens=policy.horizon.step_tokens,
        lengths=policy.reads_lengths,
        work=settings.measures_work,
    )
