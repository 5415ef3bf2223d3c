"""The load, SLO, profiles and network that a plan is for, of a trace or a scenario."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.cluster import Role
from headway.cost.profile import load_profile, profile_names
from headway.errors import Code, HeadwayError, invalid
from headway.sim.experiment import ServiceLimits
from headway.sim.network import NetworkParams
from headway.sim.planning import HEADWAY
from headway.sim.scenario import Scenario, load_scenario, scenario_names
from headway.sim.session_source import SessionOptions, SessionSource
from headway.sim.workload import SloLimits, Workload
from headway.workload.sessions import has_sessions, load_sessions
from headway.workload.traces import load_trace
from planning.plan.candidate import SloOf
from planning.plan.space import Profiles


@dataclass(frozen=True, slots=True)
class PlanSource:
    """A load, and what else its file says; ``notes``: sentences on what a plan does not use.

    ``files``: the files of profiles, by the profile's name. ``slo_of``: limits that classes of
    requests have of their own.
    """

    workload: Workload
    slo: SloLimits
    profiles: Profiles
    network: NetworkParams
    files: dict[str, str]
    slo_of: SloOf | None = None
    notes: Sequence[str] = ()


def read_source(name: str, profiles: str = "") -> PlanSource:
    """Return what a trace's file, a scenario's or a ready-made scenario's name says.

    ``profiles``: by comma, names or files, instead of a scenario's own. HeadwayError where it
    cannot be read, or cannot be planned for.
    """
    given = [(text, load_profile(text)) for text in filter(None, profiles.split(","))]
    files = {profile.name: text for text, profile in given if text not in profile_names()}
    chosen = Profiles.same([profile for _, profile in given])
    if name in scenario_names() or name.endswith(".toml"):
        return _of_scenario(load_scenario(name), chosen, files)
    if not Path(name).is_file():
        message = (
            f"there is no trace and no scenario {name!r}: give the path of a file, or one of "
            f"{', '.join(scenario_names())}"
        )
        raise HeadwayError(Code.NOT_FOUND, message, param="trace")
    if not given:
        message = "a trace names no profile: give --profiles, of `headway profile list`"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="profiles")
    network = NetworkParams(min(each.link_bytes_per_s for each in chosen.fronts))
    workload = _recorded(Path(name))
    return PlanSource(workload, SloLimits(), chosen, network, files)


def _recorded(path: Path) -> Workload:
    """Return what a file has: sessions, or arrivals."""
    if has_sessions(path):
        source = SessionSource(SessionOptions(), load_sessions(path))
        return Workload([], 0.0, sessions=source)
    return Workload([], 0.0, trace=load_trace(path))


def _of_scenario(scenario: Scenario, chosen: Profiles, files: dict[str, str]) -> PlanSource:
    conditions, workload = scenario.conditions, scenario.workload
    cores = conditions.network.costs.cores
    if cores:
        limit = (
            "0: a plan gives every instance a host of its own; `headway simulate` runs instances "
            "that share one"
        )
        raise invalid("network.hops.cores", cores, limit)
    own = [kind.name for kind in workload.classes if kind.slo is not None]
    return PlanSource(
        workload,
        scenario.slo,
        chosen if chosen.fronts else _profiles(scenario),
        conditions.network,
        files,
        workload.slo_of if own else None,
        list(_notes(scenario, own)),
    )


def _profiles(scenario: Scenario) -> Profiles:
    """Return the profiles of a scenario's roles; those of one role stand for a missing other."""
    kinds = [kind for kind, _ in scenario.conditions.instances]
    fronts = dict.fromkeys(k.profile for k in kinds if k.role is Role.PREFILL)
    backs = dict.fromkeys(k.profile for k in kinds if k.role is not Role.PREFILL)
    return Profiles(list(fronts or backs), list(backs or fronts))


def _notes(scenario: Scenario, own: Sequence[str]) -> Iterator[str]:
    if own:
        yield f"limits of their own, which stand over --slo: requests of {', '.join(own)}"
    unused = ", ".join(_unused(scenario))
    if unused:
        yield f"not used of the scenario: {unused} (`headway simulate` uses all of it)"


def _unused(scenario: Scenario) -> Iterator[str]:
    """Yield the parts of a scenario that a plan has not."""
    conditions = scenario.conditions
    parts = {
        "policy": conditions.policies,
        "set": conditions.params,
        "limits": conditions.limits != ServiceLimits(),
        "predictor": conditions.predictor is not None,
        "gateways": conditions.num_gateways != 1,
        "failures": scenario.failures,
        "autoscale": conditions.autoscaling is not None,
        "planner": any(kind.planner != HEADWAY for kind, _ in conditions.instances),
    }
    return (name for name, is_given in parts.items() if is_given)
