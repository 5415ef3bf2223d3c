"""Estimation: tokens that a request still has to generate. One file per answer."""

from headway.policies.estimation.protocol import AsOf, Estimable, Estimation

__all__ = ["AsOf", "Estimable", "Estimation"]
