"""What an actuator is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headway.core.autoscaler.starts import StartsReport


class Actuator(Protocol):
    """Makes instances of a role come and go; it decides nothing.

    What does not answer is UNAVAILABLE (HeadwayError): the autoscaler tries again.
    """

    @property
    def name(self) -> str:
        """Its name in the configuration."""

    async def ordered(self) -> Mapping[str, int]:
        """Instances that are wanted now, by role; a role that is not its own is not in it."""

    async def starts(self) -> StartsReport | None:
        """What has come since this was asked last, and what stands by; None: it cannot tell."""

    async def scale(self, role: str, num_instances: int) -> None:
        """Want so many; those over it drain first. Returns before they are there, or gone."""

    async def change_role(self, source: str, target: str, num_instances: int) -> int:
        """Have instances serve another role without a restart; how many do: 0, where none can."""

    async def close(self) -> None:
        """Let go of connections; instances stay."""
