"""Which request does a forward pass serve next? One file per answer."""

from headway.policies.batching.protocol import Batching, Candidate, Ranked
from headway.policies.batching.queue import RankedQueue

__all__ = ["Batching", "Candidate", "Ranked", "RankedQueue"]
