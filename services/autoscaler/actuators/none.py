"""``none``: targets are only published, for readers of the store and for KEDA."""

from __future__ import annotations

from collections.abc import Mapping


class NoActuator:
    """An actuator that does nothing."""

    name = "none"

    async def ordered(self) -> Mapping[str, int]:
        """Return no roles."""
        return {}

    async def starts(self) -> None:
        """Return None: there is nothing to measure."""

    async def scale(self, role: str, num_instances: int) -> None:
        """Do nothing."""

    async def change_role(self, source: str, target: str, num_instances: int) -> int:
        """Return 0: no instance changes its role."""
        return 0

    async def close(self) -> None:
        """Do nothing: there are no connections."""
