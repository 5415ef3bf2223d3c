"""``none``: targets are only published, for the store's readers and for KEDA."""

from __future__ import annotations

from collections.abc import Mapping


class NoActuator:
    """Does nothing."""

    name = "none"

    async def ordered(self) -> Mapping[str, int]:
        """No role is its own."""
        return {}

    async def starts(self) -> None:
        """It does not see them come."""

    async def scale(self, role: str, num_instances: int) -> None:
        """Nothing."""

    async def change_role(self, source: str, target: str, num_instances: int) -> int:
        """It cannot."""
        return 0

    async def close(self) -> None:
        """Nothing to let go of."""
