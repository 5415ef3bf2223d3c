"""Goals and candidates of a plan, and what a candidate is in the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from headway.sim.worker import InstanceSpec
from headway.sim.workload import SloLimits

LIMITS = ("ttft", "ttfat", "tpot", "ttlt")
_LETTERS = MappingProxyType(
    {Role.PREFILL: "P", Role.DECODE: "D", Role.CONVERTIBLE: "C", Role.UNIFIED: "U"}
)
Params = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Goal:
    """Limits of a request, seconds, and the share of requests that must keep all of them."""

    slo: SloLimits
    attainment: float = 0.97

    def missed(self, record: Record) -> str:
        """Return the first limit that a request missed, ``end`` for all of them; "" for none."""
        if not record.finished:
            return "end"
        for name in LIMITS:
            limit = getattr(self.slo, name)
            if limit is not None and (value := getattr(record, name)) is not None and value > limit:
                return name
        return ""


def parse_goal(text: str, default: SloLimits) -> Goal:
    """Read ``ttft=0.5,tpot=0.05,attainment=0.97``; limits that are given replace the default ones.

    HeadwayError for another form, and where nothing limits a request.
    """
    given: dict[str, float] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, value = part.partition("=")
        if name not in (*LIMITS, "attainment"):
            raise invalid("--slo", part, f"NAME=VALUE with a name of {', '.join(LIMITS)}")
        try:
            given[name] = float(value)
        except ValueError:
            raise invalid(f"--slo {name}", value, "a number") from None
    attainment = given.pop("attainment", 0.97)
    if not 0 < attainment <= 1:
        raise invalid("--slo attainment", attainment, "over 0 and at most 1")
    slo = SloLimits(**given) if given else default
    if all(getattr(slo, name) is None for name in LIMITS):
        raise invalid("--slo", text, 'a limit, such as "ttft=0.5,tpot=0.05"')
    return Goal(slo, attainment)


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

    def but(self, **counts: int) -> Sizing:
        """Return a copy with other numbers of instances."""
        changed: dict[str, Any] = dict(counts)
        return replace(self, **changed)

    def spec(self, network: NetworkParams, autoscaling: Autoscaling | None = None) -> ClusterSpec:
        """Return it as a simulated cluster."""
        profiles = {Role.PREFILL: self.front}
        instances = [
            (InstanceSpec(role, profiles.get(role, self.back)), count)
            for role, count in self.counts.items()
        ]
        conditions = Conditions(instances, network, params=self.params, autoscaling=autoscaling)
        return cluster_spec(find_preset(self.preset), conditions)
