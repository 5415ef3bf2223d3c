"""When is an instance given requests, and which instance? One file per answer."""

from headway.policies.dispatch.protocol import Dispatching, Expiry, InstanceLoad, Turn, Waiting

__all__ = ["Dispatching", "Expiry", "InstanceLoad", "Turn", "Waiting"]
