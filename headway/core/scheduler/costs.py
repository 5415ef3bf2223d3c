"""Costs and γ of each model's pool, and the policies that read them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from math import inf, isfinite

from headway.cluster import Role, WorkerInfo
from headway.core.scheduler.settings import SchedulerSettings
from headway.cost.costs import MOST_VELOCITY, Constant, Costs, Source, link_rate
from headway.cost.pass_time import PassTime
from headway.messages import MAX_COST, MeasuredCosts, UsedConstant
from headway.policies.batching.headway import UNREAD_WAIT
from headway.policies.readers import constants_of, teach


class PoolCosts:
    """The costs by model: a profile's until workers report what they have measured.

    Policies are told when they are added, and at every change.
    """

    def __init__(self, settings: SchedulerSettings) -> None:
        self._known = settings.costs
        self._by_model: dict[str, Costs] = {}
        self._measured: dict[str, tuple[str, Costs]] = {}
        self._readers: dict[str, list[object]] = {}
        self._orders: dict[str, tuple[str, tuple[UsedConstant, ...]]] = {}

    def of(self, model: str) -> Costs:
        """Return a model's costs."""
        return self._by_model.get(model, self._known)

    def add_reader(self, model: str, policy: object) -> None:
        """Tell a policy the costs of its model from now on, if it reads them."""
        self._readers.setdefault(model, []).append(policy)
        teach(policy, self.of(model))

    def constants(self, model: str) -> tuple[Constant, ...]:
        """Return the constants that the model's policies use now."""
        return constants_of(*self._readers.get(model, ()))

    def order_of(self, worker_id: str) -> tuple[UsedConstant, ...]:
        """Return the constants by which a worker's order decides, as it reported them."""
        return self._orders.get(worker_id, ("", ()))[1]

    def orders_of(self, worker_ids: Iterable[str]) -> tuple[Constant, ...]:
        """Return those of several workers, each by its worker's name, for a decision's reasons."""
        return tuple(
            Constant(f"{each.name} of {worker_id}", each.value, Source(each.source))
            for worker_id in dict.fromkeys(worker_ids)
            for each in self.order_of(worker_id)
            if isfinite(each.value)
        )

    def heard(
        self,
        info: WorkerInfo,
        measured: MeasuredCosts | None,
        constants: tuple[UsedConstant, ...] = (),
    ) -> None:
        """Take a worker's report; None and none if it has nothing new."""
        if constants:
            self._orders[info.worker_id] = info.model, constants
        if measured is not None:
            self._measured[info.worker_id] = info.model, costs_of(info, measured)
            self._update(info.model)

    def unread_wait(self, model: str) -> float:
        """Return T of the workers' order, s: their median, infinite where none has reported it."""
        reported = sorted(
            each.value
            for of, constants in self._orders.values()
            for each in constants
            if of == model and each.name == UNREAD_WAIT
        )
        return reported[len(reported) // 2] if reported else inf

    def forget(self, worker_id: str) -> None:
        """Forget a worker that is gone; what the last one measured stays in use."""
        self._orders.pop(worker_id, None)
        model, _ = self._measured.pop(worker_id, ("", None))
        if self._measured_of(model):
            self._update(model)

    def _update(self, model: str) -> None:
        costs = self._known.updated(self._measured_of(model))
        self._by_model[model] = costs
        for policy in self._readers.get(model, ()):
            teach(policy, costs)

    def _measured_of(self, model: str) -> Collection[Costs]:
        return [costs for name, costs in self._measured.values() if name == model]


def costs_of(info: WorkerInfo, measured: MeasuredCosts) -> Costs:
    """Return a worker's measurements of what its role does; 0 where it could measure nothing.

    A convertible decoder's chunk is no prefiller's.
    """
    role = info.role
    prefills, decodes = role.prefills and role is not Role.CONVERTIBLE, role.decodes
    pass_time = PassTime(
        measured.base,
        per_prefill_token=measured.per_prefill_token if prefills else 0.0,
        per_request=measured.per_request if decodes else 0.0,
        per_kv_token=measured.per_kv_token if decodes else 0.0,
        per_prefill_context=measured.per_prefill_context if prefills else 0.0,
    )
    swap = min(2 * measured.swap_per_token, MAX_COST)
    costs = Costs.of_passes(pass_time, info.pass_tokens, info.num_units, swap)
    if not measured.link_per_byte:
        return costs
    link = link_rate(measured.link_per_byte)
    network = link / info.kv_bytes_per_token if prefills and info.kv_bytes_per_token else 0.0
    return replace(costs, link_bytes_per_s=link, network_tokens_per_s=min(network, MOST_VELOCITY))
