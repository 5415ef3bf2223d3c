"""The base of all actuators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from headway.core.autoscaler.starts import StartsReport


class Actuator(ABC):
    """A way to start and stop instances of a role; it decides nothing.

    Raises HeadwayError (UNAVAILABLE) if the service behind it does not answer: the autoscaler tries
    again.
    """

    name: str
    """The actuator's name in the configuration."""

    @abstractmethod
    async def ordered(self) -> Mapping[str, int]:
        """Return the number of ordered instances by role; leave out roles it does not manage."""

    async def starts(self) -> StartsReport | None:
        """Return new starts and the number of standbys; None if they cannot be measured."""
        return None

    @abstractmethod
    async def scale(self, role: str, num_instances: int) -> None:
        """Order this number of instances; surplus ones drain first. Return before that is done."""

    async def change_role(self, source: str, target: str, num_instances: int) -> int:
        """Change the role of running instances without a restart; return how many changed, or 0."""
        return 0

    async def close(self) -> None:  # noqa: B027 (most have no connections)
        """Close the connections; instances stay."""
