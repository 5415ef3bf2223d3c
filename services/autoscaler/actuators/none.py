"""``none``: targets are only published, for readers of the store and for KEDA."""

from __future__ import annotations

from collections.abc import Mapping

from services.autoscaler.actuators.protocol import Actuator


class NoActuator(Actuator):
    """An actuator that does nothing."""

    name = "none"

    async def ordered(self) -> Mapping[str, int]:
        """Return no roles."""
        return {}

    async def scale(self, role: str, num_instances: int) -> None:
        """Do nothing."""
