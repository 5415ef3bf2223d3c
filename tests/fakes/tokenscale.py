"""A profile for TokenScale's routing."""

from __future__ import annotations

from dataclasses import replace

from headway.cost.profile import load_profile
from headway.policies.dispatch.tokenscale import (
    TokenScaleRoutingParams,
)

# 10,000 tokens/s on a prefiller; (1000 − B) / 0.1 s on a convertible decoder
PROFILE = replace(
    load_profile("llama-8b-a100"), prefill_tokens_per_s=10_000.0, convertible_chunk_tokens=1000
)


PARAMS = TokenScaleRoutingParams(profile=PROFILE, margin=0.0, fit="first")
