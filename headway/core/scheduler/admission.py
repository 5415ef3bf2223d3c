"""Admission: the requests that can be served, and the refusals of the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from math import inf

from headway.core.scheduler.instance import Instance, total_tokens
from headway.core.scheduler.settings import SchedulerSettings
from headway.errors import Code
from headway.messages import Rejected, WantedReports
from headway.policies import registry
from headway.policies.dispatch import Dispatching
from headway.policies.packing.flow_control import FlowLevel
from headway.policies.placement import Placement
from headway.policies.rescheduling import Horizon, Rescheduling
from headway.request import Request

_LOADS_EVERY = 1.0  # seconds


def refuse_for_good(
    request: Request, models: Collection[str], instances: Iterable[Instance]
) -> Rejected | None:
    """Return the refusal of a request that can never be served, or None.

    ``models``: all that were ever seen. A model without a worker has no limits for now: the request
    waits for a worker.
    """
    if models and request.model not in models:
        known = ", ".join(sorted(models))
        message = f"model is {request.model!r}; the models served are: {known}"
        return Rejected(request.key, Code.NOT_FOUND, message)
    serving = [i for i in instances if i.info.model == request.model]
    total = total_tokens(request)
    if all(total < i.max_request_tokens for i in serving):
        return None  # as nearly always
    decoding = [i for i in serving if i.info.role.decodes]
    limit = max((i.max_request_tokens for i in decoding), default=total)
    if total > limit:
        message = (
            f"the prompt has {len(request.prompt_token_ids)} tokens and max_tokens is "
            f"{request.sampling.max_tokens}, together {total}; the limit is {limit}: "
            "shorten the prompt or lower max_tokens"
        )
        return Rejected(request.key, Code.INVALID_ARGUMENT, message)
    prefilling = [i for i in serving if i.info.role.prefills]
    if prefilling and not any(i.could_hold(request) for i in prefilling):
        limit = max(i.max_request_tokens for i in prefilling)
        message = (
            f"the request has {request.num_tokens} tokens; the largest prefill instance holds "
            f"{limit} with at least one to generate: shorten the prompt"
        )
        return Rejected(request.key, Code.INVALID_ARGUMENT, message)
    return None


def refuse_for_now(
    request: Request,
    level: FlowLevel,
    num_waiting: int,
    retry_after_now: Callable[[], float],
    settings: SchedulerSettings,
) -> Rejected | None:
    """Return the refusal of a request without room to wait, or None; never of later attempts.

    Their clients have read part of an answer, and their number was bounded when they were admitted.
    """
    if request.attempt > 0:
        return None
    if num_waiting >= settings.max_waiting:
        retry_after = retry_after_now()
        message = (
            f"{num_waiting} requests are waiting, the limit is {settings.max_waiting}: "
            f"try again in {retry_after:.1f} s"
        )
    elif level is FlowLevel.REJECTING:
        control = settings.flow_control
        limit = control.reject_factor * control.num_cycles
        retry_after = retry_after_now()
        message = (
            f"requests have waited more than {limit:.0f} dispatch cycles: "
            f"try again in {retry_after:.1f} s"
        )
    else:
        return None
    return Rejected(request.key, Code.RESOURCE_EXHAUSTED, message, retry_after)


def wanted_reports(settings: SchedulerSettings) -> WantedReports:
    """Return the reports that the policies declare they read."""
    dispatching: Dispatching = registry.make(
        "dispatch", settings.dispatch, **settings.dispatch_params
    )
    placement: Placement = registry.make(
        "placement", settings.placement, **settings.placement_params
    )
    rescheduling: Rescheduling = registry.make(
        "rescheduling", settings.rescheduling, **settings.rescheduling_params
    )
    reads_loads = rescheduling.interval < inf or placement.reads_ahead
    horizon = horizon_of(settings)
    return WantedReports(
        phases=dispatching.reads_phases or placement.reads_phases,
        load_interval=min(_LOADS_EVERY, rescheduling.interval / 2) if reads_loads else inf,
        num_steps=horizon.num_steps,
        step_tokens=horizon.step_tokens,
        lengths=rescheduling.reads_lengths or placement.reads_ahead,
        work=settings.measures_work,
    )


def horizon_of(settings: SchedulerSettings) -> Horizon:
    """Return the horizon that workers look ahead: of the moves, if they read lengths."""
    rescheduling: Rescheduling = registry.make(
        "rescheduling", settings.rescheduling, **settings.rescheduling_params
    )
    return rescheduling.horizon if rescheduling.reads_lengths else Horizon()
