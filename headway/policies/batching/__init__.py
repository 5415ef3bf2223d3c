"""Which request does a forward pass serve next? One file per answer."""

from headway.policies.batching.protocol import Batching, Candidate

__all__ = ["Batching", "Candidate"]
