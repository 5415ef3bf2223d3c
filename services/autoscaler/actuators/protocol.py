"""The protocol of an actuator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headway.core.autoscaler.starts import StartsReport


class Actuator(Protocol):
    """A way to start and stop instances of a role; it decides nothing.

    Raises HeadwayError (UNAVAILABLE) if the service behind it does not answer: the autoscaler tries
    again.
    """

    @property
    def name(self) -> str:
        """The actuator's name in the configuration."""

    async def ordered(self) -> Mapping[str, int]:
        """Return the number of ordered instances by role; leave out roles it does not manage."""

    async def starts(self) -> StartsReport | None:
        """Return new starts and the number of standbys; None if they cannot be measured."""

    async def scale(self, role: str, num_instances: int) -> None:
        """Order this number of instances; surplus ones drain first. Return before that is done."""

    async def change_role(self, source: str, target: str, num_instances: int) -> int:
        """Change the role of running instances without a restart; return how many changed, or 0."""

    async def close(self) -> None:
        """Close the connections; instances stay."""
