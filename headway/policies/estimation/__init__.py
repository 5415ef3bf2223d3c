"""How many tokens does a request still have to generate? One file per answer."""

from collections.abc import Mapping
from types import MappingProxyType

from headway.policies.answer import Answer
from headway.policies.estimation.bins import Bins, BinsParams
from headway.policies.estimation.bucket_mean import BucketMean, BucketMeanParams
from headway.policies.estimation.countdown import Countdown, CountdownParams
from headway.policies.estimation.noisy_oracle import NoisyOracle, NoisyOracleParams
from headway.policies.estimation.oracle import Oracle
from headway.policies.estimation.protocol import Estimable, Estimation

ANSWERS: Mapping[str, Answer] = MappingProxyType(
    {
        "bins": Answer(Bins, "STAR, Table 3: 2, 4 and 6 bins", BinsParams),
        "bucket-mean": Answer(BucketMean, "STAR, for models without a predictor", BucketMeanParams),
        "countdown": Answer(Countdown, "STAR, section 4", CountdownParams),
        "noisy-oracle": Answer(NoisyOracle, "STAR, accuracy sensitivity", NoisyOracleParams),
        "oracle": Answer(Oracle, "STAR, perfect prediction"),
    }
)

__all__ = ["ANSWERS", "Estimable", "Estimation"]
