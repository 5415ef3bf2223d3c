"""A scenario: instances, network, workload, failures and SLOs, read from TOML.

Ready-made ones lie in ``headway/scenarios/``; each is an example of the format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from headway.cluster import Role
from headway.core.defaults import SIMULATED_REPORT_INTERVAL
from headway.cost.profile import load_profile
from headway.errors import Code, HeadwayError, invalid, require_between
from headway.policies import registry
from headway.policies.estimation.measured_oracle import MeasuredOracleParams
from headway.presets import QUESTIONS
from headway.service_class import ServiceClasses, read_classes, shipped_classes
from headway.sim.card import read_card
from headway.sim.experiment import Conditions, ServiceLimits
from headway.sim.failures import Failure, require_known
from headway.sim.hop_costs import HopCosts
from headway.sim.hops import load_hops
from headway.sim.network import NetworkParams
from headway.sim.planning import HEADWAY
from headway.sim.spec import Autoscaling
from headway.sim.worker import InstanceSpec
from headway.sim.workload import SloLimits, Workload, parse_workload
from headway.tables import number, parse, read, refuse_others, tables, whole

_TABLES = (
    "name",
    "instances",
    "network",
    "workload",
    "classes",
    "slo",
    "policy",
    "set",
    "failures",
    "limits",
    "autoscale",
    "gateways",
    "predictor",
    "report_interval",
)
_COUNTS = (
    "chunk_tokens",
    "kv_capacity_tokens",
    "num_units",
    "block_size",
    "max_batch",
    "num_gpus",
    "prefill_chunk_tokens",
    "convertible_chunk_tokens",
)
_CHANGES = (*_COUNTS, "start_up")
_LEAST_INTERVAL, _MOST_INTERVAL = 0.001, 60.0  # seconds between two reports of a worker
_PREDICTING, _MOST_PREDICTING = "seconds_per_request", 60.0  # of one prediction


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything but the policies."""

    name: str
    conditions: Conditions
    workload: Workload
    slo: SloLimits
    failures: Sequence[Failure] = ()


def scenario_names() -> list[str]:
    """Return the names of the ready-made scenarios."""
    folder = resources.files("headway") / "scenarios"
    return sorted(f.name[: -len(".toml")] for f in folder.iterdir() if f.name.endswith(".toml"))


def load_scenario(
    name_or_path: str,
    profile: str = "",
    *,
    hops: str = "",
    autoscales: bool = False,
    planner: str = "",
) -> Scenario:
    """Return a scenario by name or from a file; HeadwayError says what is wrong with it.

    ``profile``: of every instance, by name or from a file, instead of the scenario's own.
    ``hops``: a file of hop costs, instead of its own. ``autoscales``: let its pools follow the
    load, also if it does not say so. ``planner``: of every instance, instead of its own.
    """
    scenario = _load(name_or_path, autoscales=autoscales)
    conditions = scenario.conditions
    if profile:
        loaded = load_profile(profile)
        instances = [(replace(each, profile=loaded), count) for each, count in conditions.instances]
        conditions = replace(conditions, instances=instances)
    if planner:
        planned = [(replace(each, planner=planner), n) for each, n in conditions.instances]
        conditions = replace(conditions, instances=planned)
    if hops:
        network = replace(conditions.network, hops=load_hops(Path(hops)))
        conditions = replace(conditions, network=network)
    if autoscales and conditions.autoscaling is None:
        conditions = replace(conditions, autoscaling=Autoscaling())
    return replace(scenario, conditions=conditions)


def _load(name_or_path: str, *, autoscales: bool) -> Scenario:
    if name_or_path in scenario_names():
        file = resources.files("headway") / "scenarios" / f"{name_or_path}.toml"
        return parse_scenario(file.read_text("utf-8"), name_or_path, autoscales=autoscales)
    path = Path(name_or_path)
    if not path.is_file():
        known = ", ".join(scenario_names())
        message = f"there is no scenario {name_or_path!r}: give a TOML file, or one of {known}"
        raise HeadwayError(Code.NOT_FOUND, message, param="scenario")
    try:
        text = path.read_text("utf-8")
        return parse_scenario(text, name_or_path, path.parent, autoscales=autoscales)
    except (OSError, UnicodeDecodeError) as error:
        message = f"scenario {name_or_path} cannot be read: {error}"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="scenario") from error


def parse_scenario(
    text: str, source: str, folder: Path = Path(), *, autoscales: bool = False
) -> Scenario:
    """Return the scenario in a TOML text; files that it names begin in ``folder``.

    ``autoscales``: its pools will follow the load, also if it does not say so.
    """
    table = parse(text, f"scenario {source}", "scenario")
    try:
        scenario = _scenario(table, folder)
        require_known(
            scenario.failures,
            scenario.conditions.instances,
            scenario.conditions.num_gateways,
            may_grow=autoscales or scenario.conditions.autoscaling is not None,
        )
        return scenario
    except HeadwayError as error:
        message = f"scenario {source}: {error.message}"
        raise HeadwayError(error.code, message, param=error.param) from error


def _scenario(table: Mapping[str, Any], folder: Path) -> Scenario:
    refuse_others("the scenario", table, _TABLES)
    instances = [_instances(each) for each in tables(table, "instances")]
    network = _network(table.get("network", {}), folder)
    policies, params = table.get("policy", {}), table.get("set", {})
    if not isinstance(policies, dict) or not all(isinstance(p, str) for p in policies.values()):
        raise invalid("policy", policies, 'a table of names: [policy] batching = "trail"')
    if not isinstance(params, dict) or not all(isinstance(p, dict) for p in params.values()):
        raise invalid("set", params, "a table of tables: [set.dispatch] window = 16")
    refuse_others("policy", policies, QUESTIONS)
    for question, name in policies.items():
        if name.endswith(".py"):  # a scenario that is passed on runs nobody's code
            raise invalid(f"policy.{question}", name, "a name; give the path of a file to --policy")
    refuse_others("set", params, QUESTIONS)
    num_gateways = table.get("gateways", 1)
    if type(num_gateways) is not int or not 1 <= num_gateways <= 64:
        raise invalid("gateways", num_gateways, "a whole number from 1 to 64")
    predictor, predicting = None, 0.0
    if "predictor" in table:
        predictor, predicting = _predictor(table["predictor"], folder)
    return Scenario(
        str(table.get("name", "scenario")),
        Conditions(
            tuple(instances),
            network,
            limits=read(ServiceLimits, table.get("limits", {}), "limits"),
            policies=policies,
            params=params,
            autoscaling=read(Autoscaling, table["autoscale"], "autoscale")
            if "autoscale" in table
            else None,
            report_interval=_report_interval(table),
            num_gateways=num_gateways,
            predictor=predictor,
            prediction_seconds=predicting,
        ),
        parse_workload(table.get("workload", {}), folder, _services(table)),
        read(SloLimits, table.get("slo", {}), "slo"),
        [read(Failure, each, "failures") for each in tables(table, "failures")]
        if "failures" in table
        else (),
    )


def _services(table: Mapping[str, Any]) -> ServiceClasses:
    """Return the service classes: the scenario's own, or those that come with Headway."""
    return read_classes({"classes": table["classes"]}) if "classes" in table else shipped_classes()


def _report_interval(table: Mapping[str, Any]) -> float:
    seconds = number("report_interval", table.get("report_interval", SIMULATED_REPORT_INTERVAL))
    require_between("report_interval", seconds, _LEAST_INTERVAL, _MOST_INTERVAL)
    return seconds


def _predictor(table: Any, folder: Path) -> tuple[Mapping[str, object], float]:
    """Return parameters of ``measured-oracle``, and the seconds that a prediction takes.

    They are a card's errors, and what else is known of a predictor.
    """
    known = registry.find("estimation", "measured-oracle").parameters()
    refuse_others("predictor", table, ("card", _PREDICTING, *known))
    seconds = number(f"predictor.{_PREDICTING}", table.get(_PREDICTING, 0.0))
    require_between(f"predictor.{_PREDICTING}", seconds, 0, _MOST_PREDICTING)
    rest = {key: value for key, value in table.items() if key in known}
    card = read_card(folder / str(table["card"])) if "card" in table else {}
    params = {**card, **rest}
    read(MeasuredOracleParams, params, "predictor")  # refuses what is out of range
    return params, seconds


def _network(table: Any, folder: Path) -> NetworkParams:
    """Return the network; ``hops`` is a table of its own, or the path of a file."""
    hops = table.get("hops") if isinstance(table, dict) else None
    if hops is None:
        return read(NetworkParams, table, "network")
    rest = {key: value for key, value in table.items() if key != "hops"}
    loaded = load_hops(folder / hops) if isinstance(hops, str) else None
    return replace(
        read(NetworkParams, rest, "network"), hops=loaded or read(HopCosts, hops, "network.hops")
    )


def _instances(table: Mapping[str, Any]) -> tuple[InstanceSpec, int]:
    refuse_others(
        "instances", table, ("role", "count", "profile", "host_kv_gib", "planner", *_CHANGES)
    )
    roles = [role.value for role in Role]
    if table.get("role") not in roles:
        raise invalid("instances.role", table.get("role"), f"one of {', '.join(roles)}")
    count = table.get("count", 1)
    if type(count) is not int or not 1 <= count <= 4096:
        raise invalid("instances.count", count, "a whole number from 1 to 4096")
    changes: dict[str, Any] = {
        name: (whole if name in _COUNTS else number)(f"instances.{name}", table[name])
        for name in _CHANGES
        if name in table
    }
    profile = replace(load_profile(str(table.get("profile", ""))), **changes)
    host = number("instances.host_kv_gib", table.get("host_kv_gib", 0.0))
    require_between("instances.host_kv_gib", host, 0, 1 << 20)
    if host:  # of all DP units, as the live option
        num_tokens = int(host * 2**30) // profile.kv_bytes_per_token // profile.num_units
        profile = replace(profile, host_capacity_tokens=num_tokens)
    planner = table.get("planner", HEADWAY)
    return InstanceSpec(Role(table["role"]), profile, planner=planner), count
