"""Models that count: an autoscaler of one model reads it alone, one of no model sums over all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headway.policies.scaling.protocol import Fleet, PoolLoad


def is_meant(model: str, own: str) -> bool:
    """Return whether a report on a model is for an autoscaler of ``own``; "" is any."""
    return not model or not own or model == own


def all_fleets(fleets: Sequence[Fleet]) -> Fleet:
    """Return the instances of several models together, without samples, which are reported once."""
    if len(fleets) == 1:
        return fleets[0]
    return Fleet(
        _together(fleet.prefill for fleet in fleets),
        _together(fleet.decode for fleet in fleets),
        _together(fleet.convertible for fleet in fleets),
        _together(fleet.unified for fleet in fleets),
    )


def _together(pools: Iterable[PoolLoad]) -> PoolLoad:
    each = list(pools)
    num_ready = sum(pool.num_ready for pool in each)
    return PoolLoad(
        num_ready,
        sum(pool.num_starting for pool in each),
        sum(pool.num_requests for pool in each),
        sum(pool.backlog_tokens for pool in each),
        sum(pool.busy * pool.num_ready for pool in each) / max(num_ready, 1),
        sum(pool.memory * pool.num_ready for pool in each) / max(num_ready, 1),
    )
