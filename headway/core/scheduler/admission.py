"""Admission: the requests that can be served, and the refusals of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

from headway.core.scheduler.instance import Instance, total_tokens
from headway.core.scheduler.settings import SchedulerSettings
from headway.core.scheduler.windows import TenantWindows
from headway.errors import Code, invalid
from headway.messages import Rejected, WantedReports
from headway.policies import registry
from headway.policies.dispatch import Dispatching
from headway.policies.packing.flow_control import FlowLevel
from headway.policies.placement import Placement
from headway.policies.rescheduling import Horizon, Rescheduling
from headway.request import Request

_LOADS_EVERY = 1.0  # seconds
_MODEL_RETRY = 5.0  # seconds until a request for a model without workers is worth another try
MOST_MODELS = 1024
"""Models of one term: each has a window and policies, which stay."""
_LATER_ATTEMPTS = 16
"""Times ``max_waiting`` that may wait where all but the first are later attempts."""
_LEAST_LATER = 4096
"""However low ``max_waiting`` is: as many as may have run when their workers died."""
_MOST_OF_FREE = 4
"""A tenant alone has four fifths of the places."""


class SizeLimits:
    """Limits of the instances: which requests they can serve at all.

    ``models``: all that were ever seen. A model without a worker has no limits for now: a request
    waits for a worker.
    """

    def __init__(self, instances: Mapping[str, Instance]) -> None:
        self.models: set[str] = set()
        self._instances = instances
        self._least: dict[str, float] = {}

    def add(self, model: str) -> None:
        """Note a worker's model; INVALID_ARGUMENT for one too many of them."""
        if model not in self.models and len(self.models) >= MOST_MODELS:
            raise invalid("the number of models", len(self.models) + 1, f"at most {MOST_MODELS}")
        self.models.add(model)

    def update(self) -> None:
        """Note that instances have joined, left or changed."""
        self._least.clear()

    def refuse(self, request: Request) -> Rejected | None:
        """Return the refusal of a request that no worker could serve, or None.

        Gateways know the names of models: one that no worker has had may come with the next.
        """
        model = request.model
        if self.models and model not in self.models:
            known = ", ".join(sorted(self.models))
            message = f"no worker serves model {model!r} yet; those that joined serve: {known}"
            return Rejected(request.key, Code.UNAVAILABLE, message, _MODEL_RETRY)
        if request.adapter and (refusal := self._refuse_adapter(request)):
            return refusal
        least = self._least.get(model)
        if least is None:
            sizes = (i.max_request_tokens for i in self._serving(model))
            least = self._least[model] = min(sizes, default=inf)
        if total_tokens(request) < least:
            return None  # as nearly always
        return _refuse_size(request, self._serving(model))

    def _refuse_adapter(self, request: Request) -> Rejected | None:
        """Return the refusal of an adapter that none of the model's workers has, or None."""
        there = [instance.info for instance in self._serving(request.model)]
        if not there or any(info.has_adapter(request.adapter) for info in there):
            return None
        known = ", ".join(sorted({a.name for info in there for a in info.adapters})) or "none"
        message = f"no worker of {request.model!r} has adapter {request.adapter!r} yet; those "
        message += f"that joined have: {known}"
        return Rejected(request.key, Code.UNAVAILABLE, message, _MODEL_RETRY)

    def _serving(self, model: str) -> list[Instance]:
        return [i for i in self._instances.values() if i.info.model == model]


def _refuse_size(request: Request, serving: Sequence[Instance]) -> Rejected | None:
    """Return the refusal of a request that is too long for a model's instances, or None."""
    total = total_tokens(request)
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
    window: TenantWindows | None,
    num_waiting: int,
    retry_after_now: Callable[[], float],
    settings: SchedulerSettings,
) -> Rejected | None:
    """Return the refusal of a request without room to wait, or None; hardly of later attempts.

    Their clients have read part of an answer, and their number was bounded when they were admitted:
    only as long as gateways are what they should be, so they have a bound of their own. A tenant
    with a name may have at most four times the free places, so that a newcomer finds one (as at
    the gateway's bounds). ``num_waiting``: in the windows of all models.
    """
    most_later = max(_LEAST_LATER, _LATER_ATTEMPTS * settings.max_waiting)
    if request.attempt > 0 and num_waiting < most_later:
        return None
    tenant, free = request.standing.tenant, settings.max_waiting - num_waiting
    num_own = window.num_waiting_of(tenant) if window is not None and tenant else 0
    level = window.level(tenant) if window is not None else FlowLevel.OPEN
    if free <= 0:
        retry_after = retry_after_now()
        message = (
            f"{num_waiting} requests are waiting, the limit is {settings.max_waiting}: "
            f"try again in {retry_after:.1f} s"
        )
    elif num_own >= _MOST_OF_FREE * free:
        retry_after = retry_after_now()
        message = (
            f"{num_own} requests of {tenant} are waiting, and {num_waiting} of "
            f"at most {settings.max_waiting} in all: try again in {retry_after:.1f} s"
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


def wanted_reports(settings: SchedulerSettings, *, has_choice: bool = True) -> WantedReports:
    """Return the reports that the policies declare they read.

    Where there is no other unit to place or move a request to, nobody reads loads and lengths.
    """
    dispatching: Dispatching = registry.make(
        "dispatch", settings.dispatch, **settings.dispatch_params
    )
    placement: Placement = registry.make(
        "placement", settings.placement, **settings.placement_params
    )
    rescheduling: Rescheduling = registry.make(
        "rescheduling", settings.rescheduling, **settings.rescheduling_params
    )
    reads_loads = has_choice and (rescheduling.interval < inf or placement.reads_ahead)
    horizon = horizon_of(settings)
    return WantedReports(
        phases=dispatching.reads_phases or placement.reads_phases,
        load_interval=min(_LOADS_EVERY, rescheduling.interval / 2) if reads_loads else inf,
        num_steps=horizon.num_steps,
        step_tokens=horizon.step_tokens,
        lengths=has_choice and (rescheduling.reads_lengths or placement.reads_ahead),
        work=settings.measures_work,
    )


def horizon_of(settings: SchedulerSettings) -> Horizon:
    """Return the horizon that workers look ahead: of the moves, if they read lengths."""
    rescheduling: Rescheduling = registry.make(
        "rescheduling", settings.rescheduling, **settings.rescheduling_params
    )
    return rescheduling.horizon if rescheduling.reads_lengths else Horizon()
