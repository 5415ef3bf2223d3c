"""Which DP unit decodes which prefilled request? One file per answer."""

from collections.abc import Mapping
from types import MappingProxyType

from headway.policies.answer import Answer
from headway.policies.placement.bucket_balance import BucketBalance, BucketBalanceParams
from headway.policies.placement.iqr_lex import IqrLex, IqrLexParams
from headway.policies.placement.least_kv import LeastKv
from headway.policies.placement.lex import Lex
from headway.policies.placement.min_cost import MinCost, MinCostParams
from headway.policies.placement.pascal import PascalPlacement, PascalPlacementParams
from headway.policies.placement.protocol import Choice, DecodeUnit, Placeable, Placement
from headway.policies.placement.random import RandomParams, RandomPlacement
from headway.policies.placement.round_robin import RoundRobin

ANSWERS: Mapping[str, Answer] = MappingProxyType(
    {
        "bucket-balance": Answer(BucketBalance, "TokenScale, section IV-C", BucketBalanceParams),
        "iqr-lex": Answer(IqrLex, "SBS, Algorithm 3", IqrLexParams),
        "least-kv": Answer(LeastKv, "STAR's current-load placement"),
        "lex": Answer(Lex, "SBS, Algorithm 3 without its mask"),
        "min-cost": Answer(MinCost, "Headway: the composition's stage 3", MinCostParams),
        "pascal": Answer(PascalPlacement, "PASCAL, Algorithms 1 and 2", PascalPlacementParams),
        "random": Answer(RandomPlacement, "the common baseline", RandomParams),
        "round-robin": Answer(RoundRobin, "STAR's baseline"),
    }
)

__all__ = ["ANSWERS", "Choice", "DecodeUnit", "Placeable", "Placement"]
