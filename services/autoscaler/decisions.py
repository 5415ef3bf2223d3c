"""The newest decisions: remembered, logged, shown."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from prometheus_client import CollectorRegistry, Gauge

from headway.core.autoscaler.events import ROLES, PublishTargets


class Decisions:
    """The last ``num_kept`` decisions. Each is logged with its figures; changes at level info."""

    def __init__(self, num_kept: int, log: Any, registry: CollectorRegistry) -> None:
        self._kept: deque[PublishTargets] = deque(maxlen=num_kept)
        self._log = log
        self._news = asyncio.Event()
        self._gauge = Gauge(
            "headway_autoscaler_target_instances", "Instances wanted", ["role"], registry=registry
        )
        self._constants = Gauge(
            "headway_autoscaler_decision_constants",
            "Constants that decisions use now",
            ["constant", "source"],
            registry=registry,
        )

    @property
    def newest(self) -> PublishTargets | None:
        """The last decision; None before the first."""
        return self._kept[-1] if self._kept else None

    def last(self, number: int) -> Sequence[PublishTargets]:
        """Return the last ``number`` decisions, oldest first; 0 returns all that are kept."""
        return list(self._kept)[-number:]

    async def changed(self) -> None:
        """Wait for the next decision, whether or not it differs."""
        await self._news.wait()

    def add(self, decided: PublishTargets) -> None:
        """Record and log a decision, and update the metrics."""
        before = self.newest
        changed = before is None or _numbers(before) != _numbers(decided)
        self._kept.append(decided)
        self._news.set()
        self._news = asyncio.Event()
        for role, number in zip(ROLES, _numbers(decided), strict=True):
            self._gauge.labels(role).set(number)
        self._constants.clear()
        for name, value, source in decided.constants:
            self._constants.labels(name, source.value).set(value)
        say = self._log.info if changed else self._log.debug
        say(
            "targets_decided",
            **asdict(decided.targets),
            policy=decided.policy,
            rates=None if decided.rates is None else asdict(decided.rates),
            fleet=None if decided.fleet is None else _figures(decided),
        )


def _numbers(decided: PublishTargets) -> tuple[int, ...]:
    return tuple(getattr(decided.targets, f"num_{role}") for role in ROLES)


def _figures(decided: PublishTargets) -> dict[str, Any]:
    """Return every pool's load without velocity samples, of which there may be thousands."""
    return {role: asdict(getattr(decided.fleet, role)) for role in ROLES}
