"""Does a request arrive in a burst? One file per answer."""

from headway.policies.burst.protocol import Burst, Label

__all__ = ["Burst", "Label"]
