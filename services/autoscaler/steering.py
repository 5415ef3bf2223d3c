"""Steering: brings the instances to the newest targets, one call at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from headway.core.autoscaler.core import role_changes
from headway.core.autoscaler.events import ROLES, OrderedReport, PublishTargets
from headway.core.autoscaler.starts import StartsReport
from headway.errors import HeadwayError
from services.autoscaler.actuators import Actuator
from services.runtime.essential import end_tasks, essential


class Steering:
    """A loop that compares ordered instances with the last decision every ``interval`` seconds.

    It reads the number of ordered instances from the actuator and never from its own calls. It
    therefore repeats a lost order and reverts changes made by others. With ``changes_roles`` an
    instance of a shrinking pool takes the role of a growing one, if the actuator supports that.
    """

    def __init__(
        self,
        actuator: Actuator,
        newest: Callable[[], PublishTargets | None],
        post: Callable[[OrderedReport | StartsReport], None],
        log: Any,
        *,
        interval: float,
        changes_roles: bool = True,
    ) -> None:
        self._actuator = actuator
        self._newest = newest
        self._post = post
        self._log = log
        self._interval = interval
        self._changes_roles = changes_roles
        self._reached = True
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> OrderedReport:
        """Wait until the actuator answers; return what is ordered before any decision."""
        while True:
            try:
                return _report(await self._actuator.ordered())
            except HeadwayError as error:
                self._failed(error)
            await asyncio.sleep(self._interval)

    def start(self) -> None:
        """Start steering."""
        self._task = essential(self._run(), "steering")

    async def stop(self) -> None:
        """Stop steering; instances stay as they are."""
        await end_tasks(self._task)
        await self._actuator.close()

    async def _run(self) -> None:
        while True:
            try:
                await self._step()
                if not self._reached:
                    self._log.info("actuator_reached", actuator=self._actuator.name)
                self._reached = True
            except HeadwayError as error:
                self._failed(error)
            except Exception as error:  # one failed step must not end the steering
                self._log.error("unexpected_error", actuator=self._actuator.name, exc_info=error)
            await asyncio.sleep(self._interval)

    async def _step(self) -> None:
        counts = await self._actuator.ordered()
        self._post(_report(counts))
        starts = await self._actuator.starts()
        if starts is not None:
            self._post(starts)
        decided = self._newest()
        if decided is None:
            return
        wanted = {role: getattr(decided.targets, f"num_{role}", counts[role]) for role in counts}
        there = await self._change_roles(counts, wanted) if self._changes_roles else dict(counts)
        for role, number in wanted.items():
            if number != there[role]:
                self._log.info("scaling", role=role, before=there[role], after=number)
                await self._actuator.scale(role, number)

    async def _change_roles(
        self, counts: Mapping[str, int], wanted: Mapping[str, int]
    ) -> dict[str, int]:
        """Change roles before draining or starting instances; return what is ordered afterwards."""
        there = dict(counts)
        for source, target, number in role_changes(counts, wanted):
            num_changed = await self._actuator.change_role(source, target, number)
            if num_changed:
                self._log.info("roles_changed", before=source, after=target, number=num_changed)
            there[source] -= num_changed
            there[target] += num_changed
        return there

    def _failed(self, error: HeadwayError) -> None:
        if self._reached:
            name = self._actuator.name
            self._log.warning("actuator_lost", actuator=name, error=error.message)
        self._reached = False


def _report(counts: Mapping[str, int]) -> OrderedReport:
    return OrderedReport(**{f"num_{role}": counts.get(role) for role in ROLES})
