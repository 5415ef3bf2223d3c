"""Which request does a forward pass serve next? One file per answer."""

from collections.abc import Mapping
from types import MappingProxyType

from headway.policies.answer import Answer
from headway.policies.batching.boost import BoostParams
from headway.policies.batching.distboost import DistBoost
from headway.policies.batching.fcfs import Fcfs
from headway.policies.batching.headway import Headway, HeadwayParams
from headway.policies.batching.las import Las
from headway.policies.batching.ltr import Ltr, LtrParams
from headway.policies.batching.memguard import MemGuardParams, UniBoostMemGuard
from headway.policies.batching.pascal import Pascal, PascalParams
from headway.policies.batching.protocol import Batching, Candidate, Ranked
from headway.policies.batching.queue import RankedQueue
from headway.policies.batching.rr import RoundRobin, RoundRobinParams
from headway.policies.batching.sarathi import Sarathi
from headway.policies.batching.shortest_prefix import ShortestPrefix
from headway.policies.batching.sjf import Sjf
from headway.policies.batching.skip_join_mlfq import SkipJoinMlfq, SkipJoinMlfqParams
from headway.policies.batching.srpt import Srpt
from headway.policies.batching.trail import Trail, TrailParams
from headway.policies.batching.uniboost import UniBoost, UniBoostParams
from headway.policies.batching.uniboost_base import UniBoostBase

ANSWERS: Mapping[str, Answer] = MappingProxyType(
    {
        "distboost": Answer(DistBoost, "UniBoost, phase 1", BoostParams),
        "fcfs": Answer(Fcfs, "vLLM's default"),
        "headway": Answer(Headway, "Headway, one order in seconds", HeadwayParams),
        "las": Answer(Las, "least attained service"),
        "ltr": Answer(Ltr, "Learning to Rank, NeurIPS '24", LtrParams),
        "pascal": Answer(Pascal, "PASCAL, section IV-C", PascalParams),
        "rr": Answer(RoundRobin, "PASCAL's baseline", RoundRobinParams),
        "sarathi": Answer(Sarathi, "Sarathi-Serve, OSDI '24"),
        "shortest-prefix": Answer(ShortestPrefix, "UniBoost's baseline, from vLLM"),
        "sjf": Answer(Sjf, "shortest job first, perfect lengths"),
        "skip-join-mlfq": Answer(SkipJoinMlfq, "FastServe", SkipJoinMlfqParams),
        "srpt": Answer(Srpt, "shortest remaining processing time, perfect lengths"),
        "trail": Answer(Trail, "TRAIL, ICLR '25", TrailParams),
        "uniboost": Answer(UniBoost, "UniBoost, all four phases", UniBoostParams),
        "uniboost-base": Answer(UniBoostBase, "UniBoost, phase 2", BoostParams),
        "uniboost-memguard": Answer(UniBoostMemGuard, "UniBoost, phase 3", MemGuardParams),
    }
)

__all__ = ["ANSWERS", "Batching", "Candidate", "Ranked", "RankedQueue"]
