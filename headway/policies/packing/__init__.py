"""Which DP unit prefills which waiting request? One file per answer."""

from headway.policies.packing.protocol import Assigned, Hit, Packable, Packing, Room

__all__ = ["Assigned", "Hit", "Packable", "Packing", "Room"]
