"""The gateway's core in tests: requests, tokens, and what comes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headway.cluster import Role
from headway.core.gateway.core import GatewayCore
from headway.core.gateway.events import Deliver, Fail, GatewayAction, SchedulerConnected, Submit
from headway.core.gateway.settings import GatewaySettings
from headway.messages import Placed, TokenBatch
from headway.request import FinishReason, Request, SamplingParams

SETTINGS = GatewaySettings(max_model_len=100, max_waiting=3, request_timeout=60.0)


def gateway(settings: GatewaySettings = SETTINGS, *, connected: bool = True) -> GatewayCore:
    core = GatewayCore("g", "g:1", settings)
    if connected:
        core.handle(SchedulerConnected(), now=0.0)
    return core


def submit(name: str, *, max_tokens: int = 10, num_prompt: int = 4, at: float = 0.0) -> Submit:
    sampling = SamplingParams(max_tokens=max_tokens)
    return Submit(Request(name, "m", tuple(range(num_prompt)), sampling, at))


def opened(
    core: GatewayCore, name: str = "r", *, now: float = 0.0, on: str = "w", may_be_cut: bool = False
) -> Request:
    """Submit it; the scheduler places it on a worker, unless ``on`` is empty."""
    event = replace(submit(name, at=now), may_be_cut=may_be_cut)
    request = requests_in(core.handle(event, now=now))[0]
    place(core, request, on)
    return request


def place(core: GatewayCore, request: Request, on: str = "w", target: str = "") -> None:
    if on:
        core.handle(Placed(request.key, on, 0, Role.UNIFIED, target), now=0.0)


def resubmitted(core: GatewayCore, *, now: float, on: str = "w") -> Request:
    (request,) = requests_in(core.wake(now=now))
    place(core, request, on)
    return request


def requests_in(actions: Sequence[GatewayAction]) -> list[Request]:
    return [a for a in actions if isinstance(a, Request)]


def failures_in(actions: Sequence[GatewayAction]) -> list[Fail]:
    return [a for a in actions if isinstance(a, Fail)]


def delivered(actions: Sequence[GatewayAction]) -> list[int | None]:
    return [d.token_id for a in actions if isinstance(a, Deliver) for d in a.deliveries]


def tokens(
    stream_id: int,
    first: int,
    token_ids: Sequence[int],
    *,
    end: FinishReason | None = None,
    worker: str = "w",
) -> TokenBatch:
    count = len(token_ids)
    reasons: list[FinishReason | None] = [None] * count
    if end is not None:
        reasons[-1] = end
    return TokenBatch(
        worker, [stream_id] * count, list(range(first, first + count)), token_ids, reasons, {}
    )
