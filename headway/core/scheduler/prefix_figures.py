"""Figures of the leader's index of prefixes, for metrics."""

from __future__ import annotations

from typing import NamedTuple

DEVICE, HOST = "device", "host"
"""The kinds of memory that hold prefixes."""


class TierFigures(NamedTuple):
    """One kind of memory in the index.

    ``num_expected_tokens``: hits by the index at dispatches. ``num_reported_tokens``: hits that the
    admissions of these requests found.
    """

    tier: str
    num_names: int
    num_expected_tokens: int
    num_reported_tokens: int


class PrefixFigures(NamedTuple):
    """The index at one instant, for metrics; totals are of this leader's term."""

    tiers: tuple[TierFigures, ...]
    num_claims: int
    """Names that snapshots brought."""
    num_false_claims: int
    """Admissions that found less than a snapshot had claimed."""
    num_bad_reports: int
