"""How many tokens does a request still have to generate? One file per answer."""

from collections.abc import Mapping
from types import MappingProxyType

from headway.policies.answer import Answer
from headway.policies.estimation.bucket_mean import BucketMean, BucketMeanParams

ANSWERS: Mapping[str, Answer] = MappingProxyType(
    {"bucket-mean": Answer(BucketMean, "STAR, for models without a predictor", BucketMeanParams)}
)

__all__ = ["ANSWERS"]
