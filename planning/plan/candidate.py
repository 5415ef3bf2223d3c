"""Goals and candidates of a plan, and what a candidate is in the simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from headway.cluster import Role
from headway.cost.schema import Profile
from headway.errors import invalid
from headway.presets import find_preset
from headway.sim.experiment import Conditions, cluster_spec
from headway.sim.network import NetworkParams
from headway.sim.records import Record
from headway.sim.spec import Autoscaling, ClusterSpec
from headway.sim.summary import METRICS, missed_limit
from headway.sim.worker import InstanceSpec
from headway.sim.workload import SloLimits

_LETTERS = MappingProxyType(
    {Role.PREFILL: "P", Role.DECODE: "D", Role.CONVERTIBLE: "C", Role.UNIFIED: "U"}
)
UNIFIED, DISAGGREGATED = "unified", "disaggregated"
TOPOLOGIES = (UNIFIED, DISAGGREGATED)
Params = Mapping[str, Mapping[str, object]]
SloOf = Callable[[str], SloLimits | None]


@dataclass(frozen=True, slots=True)
class Goal:
    """Limits of a request, seconds, and the share of requests that must keep all of them.

    ``slo_of``: a request's own limits by its id, instead of ``slo``; None for those without.
    """

    slo: SloLimits
    attainment: float = 0.97
    slo_of: SloOf | None = field(default=None, compare=False)

    def missed(self, record: Record) -> str:
        """Return the first limit that a request missed, ``end`` for all of them; "" for none."""
        own = None if self.slo_of is None else self.slo_of(record.request_id)
        return missed_limit(record, own or self.slo)


def parse_goal(text: str, default: SloLimits, slo_of: SloOf | None = None) -> Goal:
    """Read ``ttft=0.5,tpot=0.05,attainment=0.97``; limits that are given replace the default ones.

    ``slo_of``: limits that some requests have of their own. HeadwayError for another form, and
    where nothing limits a request.
    """
    given: dict[str, float] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, value = part.partition("=")
        if name not in (*METRICS, "attainment"):
            known = ", ".join((*METRICS, "attainment"))
            raise invalid("--slo", part, f"NAME=VALUE with a name of {known}")
        if name in given:
            raise invalid(f"--slo {name}", value, f"given once: it is {given[name]:g} already")
        try:
            given[name] = float(value)
        except ValueError:
            raise invalid(f"--slo {name}", value, "a number") from None
    attainment = given.pop("attainment", 0.97)
    if not 0 < attainment <= 1:
        raise invalid("--slo attainment", attainment, "over 0 and at most 1")
    slo = SloLimits(**given) if given else default
    if slo_of is None and all(getattr(slo, name) is None for name in METRICS):
        raise invalid("--slo", text, 'a limit, such as "ttft=0.5,tpot=0.05"')
    return Goal(slo, attainment, slo_of)


@dataclass(frozen=True, slots=True)
class Sizing:
    """Instances by role, their profiles, and a preset with its changed parameters.

    ``front``: the profile of instances that only prefill; ``back``: of all others.
    """

    preset: str
    front: Profile
    back: Profile
    prefill: int = 0
    decode: int = 0
    convertible: int = 0
    unified: int = 0
    params: Params = field(default_factory=lambda: MappingProxyType({}), compare=False)

    @property
    def counts(self) -> Mapping[Role, int]:
        """Instances by role; roles without one are left out."""
        counts = (self.prefill, self.decode, self.convertible, self.unified)
        return {role: count for role, count in zip(_LETTERS, counts, strict=True) if count}

    @property
    def num_gpus(self) -> int:
        """Accelerators of all instances."""
        others = self.decode + self.convertible + self.unified
        return self.prefill * self.front.num_gpus + others * self.back.num_gpus

    @property
    def topology(self) -> str:
        """Its instances: ``2P+5D``."""
        return "+".join(f"{count}{_LETTERS[role]}" for role, count in self.counts.items())

    @property
    def kind(self) -> str:
        """Its kind of topology: of all its instances alike, or of prefillers and others."""
        return UNIFIED if self.unified else DISAGGREGATED

    @property
    def settings(self) -> Sequence[str]:
        """The changed parameters as ``--set`` takes them."""
        return [
            f"{q}.{name}={value}" for q, own in self.params.items() for name, value in own.items()
        ]

    @property
    def name(self) -> str:
        """Its topology, profiles, preset and parameters."""
        profiles = {self.front.name: 0, self.back.name: 0} if self.prefill else {self.back.name: 0}
        return " ".join((self.topology, "/".join(profiles), self.preset, *self.settings))

    def deployed(self, role: Role) -> Profile:
        """Return the profile of its instances of a role, with the chunk of that."""
        return self._kind(role).deployed

    def but(self, **counts: int) -> Sizing:
        """Return a copy with other numbers of instances."""
        changed: dict[str, Any] = dict(counts)
        return replace(self, **changed)

    def spec(self, network: NetworkParams, autoscaling: Autoscaling | None = None) -> ClusterSpec:
        """Return it as a simulated cluster."""
        instances = [(self._kind(role), count) for role, count in self.counts.items()]
        conditions = Conditions(instances, network, params=self.params, autoscaling=autoscaling)
        return cluster_spec(find_preset(self.preset), conditions)

    def _kind(self, role: Role) -> InstanceSpec:
        return InstanceSpec(role, self.front if role is Role.PREFILL else self.back)
