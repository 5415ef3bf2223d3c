"""A waiting request as the scheduler tracks it."""

from __future__ import annotations

from dataclasses import replace

from headway.core.scheduler.places import InWindow, Tracked
from headway.service_class import ServiceClass, Standing
from tests.fakes.scheduler_text import key, make_request


def waiting(
    name: int,
    tenant: str = "",
    num_tokens: int = 10,
    service: ServiceClass | None = None,
    share: float = 1.0,
) -> Tracked:
    """It has come at the instant ``name`` / 1000."""
    standing = Standing(tenant, share, service)
    request = replace(make_request(name, num_tokens), standing=standing)
    return Tracked(key(name), f"r{name}", "m", InWindow(), request, num_tokens, name / 1000)
