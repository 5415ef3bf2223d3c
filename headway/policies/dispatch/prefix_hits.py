"""The prompt tokens that units already hold, as a dispatch policy sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headway.cluster import UnitId


class Hit(NamedTuple):
    """Tokens of a prompt's beginning that a unit holds, on the device and behind that in host
    memory.
    """

    num_device_tokens: int
    num_host_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens in either memory."""
        return self.num_device_tokens + self.num_host_tokens


NO_HIT = Hit(0)


class Matches(Protocol):
    """The units that hold a beginning of one prompt, of those that the request may go to."""

    def allows(self, unit: UnitId) -> bool:
        """Return whether the request may go to a unit."""

    def hit(self, unit: UnitId) -> Hit:
        """Return what a unit holds."""

    def holds(self, unit: UnitId) -> bool:
        """Return whether a unit holds any."""

    def holders(self, most: int) -> Sequence[UnitId]:
        """Return up to so many units that hold some, the longest beginnings first."""

    @property
    def longest(self) -> int:
        """The most tokens that a unit holds."""

    @property
    def shortest(self) -> int:
        """The fewest tokens that a unit holds; 0 if one holds none."""
