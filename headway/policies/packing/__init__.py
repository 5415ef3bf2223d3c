"""Which DP unit prefills which waiting request? One file per answer."""

from collections.abc import Mapping
from types import MappingProxyType

from headway.policies.answer import Answer
from headway.policies.packing.pbaa import Pbaa, PbaaParams
from headway.policies.packing.protocol import Assigned, Hits, Packable, Packing, Room
from headway.policies.packing.round_robin import RoundRobin

ANSWERS: Mapping[str, Answer] = MappingProxyType(
    {
        "pbaa": Answer(Pbaa, "SBS, Algorithm 2; cache-aware where hits are known", PbaaParams),
        "round-robin": Answer(RoundRobin, "SBS's baseline"),
    }
)

__all__ = ["ANSWERS", "Assigned", "Hits", "Packable", "Packing", "Room"]
