"""Which DP unit prefills which waiting request? One file per answer."""

from headway.policies.packing.protocol import Assigned, Hits, Packable, Packing, Room

__all__ = ["Assigned", "Hits", "Packable", "Packing", "Room"]
