"""Settings of a choice among endpoints, before anything is asked for one."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from headway.core.scheduler.settings import SchedulerSettings
from headway.core.settings import policy_settings, require_policies
from services.runtime.preset import PresetConfig

_NO_WATCHDOG = 1e6  # seconds


class WatchIntervals(NamedTuple):
    """Seconds between scrapes, for a scrape, and between look-ups of names."""

    scrape: float = 1.0
    timeout: float = 1.0
    resolve: float = 5.0


def choosing_settings(config: PresetConfig, limits: SchedulerSettings) -> SchedulerSettings:
    """Return the settings of a core that chooses endpoints; HeadwayError for an unknown policy."""
    preset, costs = config.chosen(), config.costs()
    require_policies(preset, costs)
    settings = policy_settings(preset, costs, replace(limits, prefix_hits=True)).scheduler
    params = dict(settings.dispatch_params)
    if "watchdog_floor" in params:  # an endpoint's ledger is never silent: the clock drains it
        params["watchdog_floor"] = _NO_WATCHDOG
    return replace(settings, dispatch_params=params)
