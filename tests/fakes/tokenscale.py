"""A profile for TokenScale's routing, and the share of its bursts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from headway.cost.profile import load_profile
from headway.policies.burst.dual_signal import DualSignal, DualSignalParams
from headway.policies.dispatch.tokenscale import (
    TokenScaleRoutingParams,
)

# 10,000 tokens/s on a prefiller; (1000 − B) / 0.1 s on a convertible decoder
PROFILE = replace(
    load_profile("llama-8b-a100"), prefill_tokens_per_s=10_000.0, convertible_chunk_tokens=1000
)


PARAMS = TokenScaleRoutingParams(profile=PROFILE, margin=0.0, fit="first")


def burst_ratio(arrivals: Iterable[tuple[float, int]], params: DualSignalParams) -> float:
    """Return the share of input tokens labelled, of arrivals (s, prompt tokens) by time.

    What the number of convertible decoders is planned with; 0 of no arrivals.
    """
    detector, num_burst, num_all = DualSignal(params), 0, 0
    for now, num_tokens in arrivals:
        num_all += num_tokens
        if detector.arrived(num_tokens, now=now).is_burst:
            num_burst += num_tokens
    return num_burst / num_all if num_all else 0.0
