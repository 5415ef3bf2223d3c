"""A scenario: instances, network, workload and SLOs, read from TOML.

Ready-made ones lie in ``headway/scenarios/``; each is an example of the format.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any

from headway.cluster import Role
from headway.errors import Code, HeadwayError, invalid, require_between, require_over
from headway.profile import load_profile
from headway.sim.cluster import SimRequest
from headway.sim.experiment import Conditions
from headway.sim.network import NetworkParams
from headway.sim.worker import InstanceSpec
from headway.workload.arrivals import gaps
from headway.workload.lengths import Lengths, parse_lengths

_TABLES = ("name", "instances", "network", "workload", "slo", "params")
_CHANGES = (
    "chunk_tokens",
    "kv_capacity_tokens",
    "num_units",
    "block_size",
    "max_batch",
    "start_up",
    "num_gpus",
)


@dataclass(frozen=True, slots=True)
class RequestClass:
    """A kind of request and its share of all."""

    name: str
    share: float
    prompt: Lengths
    reasoning: Lengths
    answer: Lengths


@dataclass(frozen=True, slots=True)
class Workload:
    """Arrivals and what they ask for. ``rate`` in requests/s; ends by count or seconds."""

    classes: Sequence[RequestClass]
    rate: float
    process: str = "poisson"
    burstiness: float = 1.0
    num_requests: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        require_over("workload.rate", self.rate, 0)
        if self.num_requests is None and self.seconds is None:
            raise invalid("workload.num_requests", None, "given, or workload.seconds")
        if self.num_requests is not None:
            require_between("workload.num_requests", self.num_requests, 1, 1 << 30)
        if self.seconds is not None:
            require_over("workload.seconds", self.seconds, 0)

    def requests(self, seed: int) -> Iterator[SimRequest]:
        """In order of arrival; the same seed gives the same ones."""
        return islice(self._endless(random.Random(seed)), self.num_requests)

    def _endless(self, rng: random.Random) -> Iterator[SimRequest]:
        now, shares = 0.0, [each.share for each in self.classes]
        arrivals = gaps(self.process, self.rate, rng, burstiness=self.burstiness)
        for number, gap in enumerate(arrivals):
            now += gap
            if self.seconds is not None and now > self.seconds:
                return
            (kind,) = rng.choices(self.classes, shares)
            num_prompt, num_reasoning = max(1, kind.prompt(rng)), kind.reasoning(rng)
            num_output = num_reasoning + max(1, kind.answer(rng))
            yield SimRequest(f"{kind.name}-{number}", now, num_prompt, num_output, num_reasoning)


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits in seconds; None: none."""

    ttft: float | None = None
    ttfat: float | None = None
    tpot: float | None = None
    ttlt: float | None = None

    def __post_init__(self) -> None:
        for limit in fields(self):
            if getattr(self, limit.name) is not None:
                require_over(f"slo.{limit.name}", getattr(self, limit.name), 0)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything but the policies."""

    name: str
    conditions: Conditions
    workload: Workload
    slo: Slo


def scenario_names() -> list[str]:
    """The ready-made ones."""
    folder = resources.files("headway") / "scenarios"
    return sorted(f.name[: -len(".toml")] for f in folder.iterdir() if f.name.endswith(".toml"))


def load_scenario(name_or_path: str) -> Scenario:
    """By name or from a file; HeadwayError says what is wrong with it."""
    if name_or_path in scenario_names():
        file = resources.files("headway") / "scenarios" / f"{name_or_path}.toml"
        return parse_scenario(file.read_text("utf-8"), name_or_path)
    path = Path(name_or_path)
    if not path.is_file():
        known = ", ".join(scenario_names())
        message = f"there is no scenario {name_or_path!r}: give a TOML file, or one of {known}"
        raise HeadwayError(Code.NOT_FOUND, message, param="scenario")
    try:
        return parse_scenario(path.read_text("utf-8"), name_or_path)
    except (OSError, UnicodeDecodeError) as error:
        message = f"scenario {name_or_path} cannot be read: {error}"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="scenario") from error


def parse_scenario(text: str, source: str) -> Scenario:
    """What a TOML text says."""
    try:
        return _scenario(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        message = f"scenario {source} is not TOML: {error}"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="scenario") from error
    except HeadwayError as error:
        message = f"scenario {source}: {error.message}"
        raise HeadwayError(error.code, message, param=error.param) from error


def _scenario(table: Mapping[str, Any]) -> Scenario:
    _refuse_others("the scenario", table, _TABLES)
    instances = [_instances(each) for each in _list(table, "instances")]
    network = NetworkParams(**_numbers("network", table.get("network", {}), NetworkParams))
    params = table.get("params", {})
    if not isinstance(params, dict) or not all(isinstance(p, dict) for p in params.values()):
        raise invalid("params", params, "a table of tables: [params.dispatch]")
    return Scenario(
        str(table.get("name", "scenario")),
        Conditions(tuple(instances), network, params=params),
        _workload(table.get("workload", {})),
        Slo(**_numbers("slo", table.get("slo", {}), Slo)),
    )


def _instances(table: Mapping[str, Any]) -> tuple[InstanceSpec, int]:
    _refuse_others("instances", table, ("role", "count", "profile", *_CHANGES))
    roles = [role.value for role in Role]
    if table.get("role") not in roles:
        raise invalid("instances.role", table.get("role"), f"one of {', '.join(roles)}")
    count = table.get("count", 1)
    if type(count) is not int or not 1 <= count <= 4096:
        raise invalid("instances.count", count, "a whole number from 1 to 4096")
    changes = {name: table[name] for name in _CHANGES if name in table}
    profile = replace(load_profile(str(table.get("profile", ""))), **changes)
    return InstanceSpec(Role(table["role"]), profile), count


def _workload(table: Mapping[str, Any]) -> Workload:
    known = tuple(f.name for f in fields(Workload))
    _refuse_others("workload", table, known)
    classes = [_request_class(each) for each in _list(table, "classes")]
    rest = {name: value for name, value in table.items() if name != "classes"}
    if "rate" not in rest:
        raise invalid("workload.rate", None, "given, in requests/s")
    for name, value in rest.items():
        if name != "process" and type(value) not in (int, float):
            raise invalid(f"workload.{name}", value, "a number")
    return Workload(classes, **rest)


def _request_class(table: Mapping[str, Any]) -> RequestClass:
    _refuse_others("workload.classes", table, ("name", "share", "prompt", "reasoning", "answer"))
    share = table.get("share", 1.0)
    require_over("workload.classes.share", share, 0)
    lengths = [
        parse_lengths(f"workload.classes.{name}", table.get(name, default))
        for name, default in (("prompt", None), ("reasoning", {**_NONE}), ("answer", None))
    ]
    return RequestClass(str(table.get("name", "request")), float(share), *lengths)


_NONE: dict[str, Any] = {"distribution": "constant", "value": 0, "min": 0}


def _list(table: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = table.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(v, dict) for v in value):
        raise invalid(name, value, f"at least one table: [[{name}]]")
    return value


def _numbers(name: str, table: Any, kind: type) -> dict[str, float]:
    if not isinstance(table, dict):
        raise invalid(name, table, f"a table: [{name}]")
    _refuse_others(name, table, tuple(f.name for f in fields(kind)))
    for key, value in table.items():
        if type(value) not in (int, float):
            raise invalid(f"{name}.{key}", value, "a number")
    return table


def _refuse_others(name: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in table:
        if key not in known:
            raise invalid(f"a key of {name}", key, f"one of {', '.join(known)}")
