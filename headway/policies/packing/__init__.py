"""Which DP unit prefills which waiting request? One file per answer."""

from headway.policies.packing.protocol import NO_HITS, Assigned, Hits, Packable, Packing, Room

__all__ = ["NO_HITS", "Assigned", "Hits", "Packable", "Packing", "Room"]
