"""How many tokens does a request still have to generate? One file per answer."""

from headway.policies.estimation.protocol import Estimable, Estimation

__all__ = ["Estimable", "Estimation"]
