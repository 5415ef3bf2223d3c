"""Scaling: the number of instances of each role. One file per answer."""

from headway.policies.scaling.meter import RateMeter
from headway.policies.scaling.protocol import Fleet, PoolLoad, Rates, Scaling, Targets, WorkSample

__all__ = ["Fleet", "PoolLoad", "RateMeter", "Rates", "Scaling", "Targets", "WorkSample"]
