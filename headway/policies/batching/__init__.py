"""Which request does a forward pass serve next? One file per answer."""

from collections.abc import Mapping
from types import MappingProxyType

from headway.policies.answer import Answer
from headway.policies.batching.fcfs import Fcfs
from headway.policies.batching.protocol import Batching, Candidate
from headway.policies.batching.sarathi import Sarathi

ANSWERS: Mapping[str, Answer] = MappingProxyType(
    {
        "fcfs": Answer(Fcfs, "vLLM's default"),
        "sarathi": Answer(Sarathi, "Sarathi-Serve, OSDI '24"),
    }
)

__all__ = ["ANSWERS", "Batching", "Candidate"]
