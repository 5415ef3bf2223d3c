"""Estimation: tokens that a request still has to generate. One file per answer."""

from headway.policies.estimation.protocol import Estimable, Estimation

__all__ = ["Estimable", "Estimation"]
