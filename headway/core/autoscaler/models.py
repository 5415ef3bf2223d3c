"""Selection by model: an autoscaler reads the reports of its model, or the sum over all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headway.policies.scaling.protocol import Fleet, PoolLoad


def is_meant(model: str, own: str) -> bool:
    """Return whether a report on ``model`` concerns an autoscaler of ``own``; "" stands for any."""
    return not model or not own or model == own


def all_fleets(fleets: Sequence[Fleet]) -> Fleet:
    """Add up the instances of several models, without samples, which are reported once.

    Of the networks the slowest counts.
    """
    if len(fleets) == 1:
        return fleets[0]
    networks = [each.network_tokens_per_s for each in fleets if each.network_tokens_per_s]
    return Fleet(
        _together(fleet.prefill for fleet in fleets),
        _together(fleet.decode for fleet in fleets),
        _together(fleet.convertible for fleet in fleets),
        _together(fleet.unified for fleet in fleets),
        network_tokens_per_s=min(networks, default=None),
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
