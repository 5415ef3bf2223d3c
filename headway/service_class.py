"""Classes of requests by what they are promised, read from one TOML table."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from headway.bounds import Bounded, at_least, between, over
from headway.errors import HeadwayError, invalid
from headway.tables import parse, read, refuse_others, tables

SHIPPED_CLASSES = "classes.toml"


@dataclass(frozen=True, slots=True)
class ServiceClass(Bounded):
    """A class and its promise, in seconds; None promises nothing."""

    name: str
    ttft: float | None = over(0, default=None)
    """Until the first token: a request is due so long after its arrival."""
    ttfat: float | None = over(0, default=None)
    """Until the first answering token."""
    tpot: float | None = between(0.001, 10, default=None)
    """For each token of the answer, as its reader reads; None: the preset's."""
    deadline: float | None = over(0, default=None)
    """Until the last token, then the request is given up; None: the gateway's limit."""
    floor: float = between(0, 0.5, default=0.0)
    """Share of the dispatched tokens that it gets at least while it yields and waits."""
    yields: bool = False
    """True if it takes what others leave, and gives way to them at once."""
    priority: int = between(-(2**31), 2**31 - 1, default=0)
    """vLLM's ``priority`` from which a request belongs to it; the least is the most urgent."""

    @property
    def promises(self) -> dict[str, float]:
        """The promises it makes, by name, in seconds."""
        limits = {
            "ttft": self.ttft,
            "ttfat": self.ttfat,
            "tpot": self.tpot,
            "deadline": self.deadline,
        }
        return {name: limit for name, limit in limits.items() if limit is not None}

    def kept(self, latencies: Mapping[str, float | None]) -> dict[str, bool]:
        """Return which promises a finished request has kept, by name.

        ``latencies``: its ``ttft``, ``ttfat``, ``tpot`` and ``e2e``, seconds; None for none.
        """
        times = {name: latencies["e2e" if name == "deadline" else name] for name in self.promises}
        return {
            name: seconds <= self.promises[name]
            for name, seconds in times.items()
            if seconds is not None
        }

    def kept_by_failed(self, latencies: Mapping[str, float | None]) -> dict[str, bool]:
        """Return which promises a request has kept that failed: of first tokens that it got."""
        got = {**latencies, "tpot": None, "e2e": None}
        return {**dict.fromkeys(self.promises, False), **self.kept(got)}

    def kept_until(self, latencies: Mapping[str, float | None], waited: float) -> dict[str, bool]:
        """Return which promises were kept or broken when a client left after ``waited`` seconds.

        A promise whose instant had not come is neither.
        """
        passed = (name for name, limit in self.promises.items() if waited > limit)
        broken = {name: False for name in passed if name != "tpot"}
        return {**broken, **self.kept({**latencies, "e2e": None})}


@dataclass(frozen=True, slots=True)
class Quota(Bounded):
    """A key's limits; 0: none."""

    requests: int = at_least(0, default=0)
    """Outputs that wait or are generated."""
    waiting: int = at_least(0, default=0)
    """Outputs without a first token."""
    tokens_per_minute: int = at_least(0, default=0)


NO_QUOTA = Quota()


@dataclass(frozen=True, slots=True)
class Standing(Bounded):
    """The tenant that a request counts for, and what it is promised."""

    tenant: str = ""
    """The tenant's name; "": nobody's in particular."""
    share: float = between(1e-6, 1e6, default=1.0)
    """The tenant's share, relative to others'."""
    service: ServiceClass | None = None
    """The class of its promise; None: it is served as the policies say."""
    floods: bool = False
    """True if its tenant had more waiting, at its dispatch, than all instances compute at once."""

    @property
    def yields(self) -> bool:
        """True if by its class it takes what others leave."""
        return self.service is not None and self.service.yields


NO_STANDING = Standing()


@dataclass(frozen=True, slots=True)
class ServiceClasses:
    """The classes of one cluster; ``default``: of a request that asks for none, "" for no class."""

    by_name: Mapping[str, ServiceClass]
    default: str = ""

    def find(self, name: str) -> ServiceClass | None:
        """Return the class of that name, None for ""; INVALID_ARGUMENT for an unknown one."""
        if not name:
            return None
        service_class = self.by_name.get(name)
        if service_class is None:
            limit = f"one of {', '.join(self.by_name) or 'none: no class is configured'}"
            raise invalid("class", name[:80], limit)
        return service_class

    def of_priority(self, priority: int, among: Collection[str] = ()) -> ServiceClass | None:
        """Return the class of vLLM's priority: the last that begins at or before it.

        ``among``: names of those that it may be; (): all. Where none of them begins so early, it
        is the first.
        """
        may_be = [each for each in self.by_name.values() if not among or each.name in among]
        ordered = sorted(may_be, key=lambda each: (each.priority, each.name))
        reached = [each for each in ordered if each.priority <= priority]
        return reached[-1] if reached else next(iter(ordered), None)

    @property
    def longest(self) -> float:
        """The longest deadline, 0 for none."""
        return max((each.deadline or 0.0 for each in self.by_name.values()), default=0.0)


NO_CLASSES = ServiceClasses({})


def shipped_classes() -> ServiceClasses:
    """Return the classes that come with Headway."""
    return parse_classes((resources.files("headway") / SHIPPED_CLASSES).read_text("utf-8"), "")


def parse_classes(text: str, source: str) -> ServiceClasses:
    """Return the classes in a TOML text; HeadwayError says what is wrong with it."""
    table = parse(text, f"the file of classes {source}".rstrip(), "classes")
    try:
        return read_classes(table)
    except HeadwayError as error:
        message = f"classes {source}: {error.message}"
        raise HeadwayError(error.code, message, param="classes") from error


def read_classes(table: Mapping[str, Any]) -> ServiceClasses:
    """Return the classes of a table of ``[[classes]]``; HeadwayError says what is wrong with it."""
    refuse_others("the classes", table, ("default", "classes"))
    listed = [read(ServiceClass, each, "classes") for each in tables(table, "classes")]
    by_name = {each.name: each for each in listed}
    if len(by_name) < len(listed) or "" in by_name:
        raise invalid("classes.name", [each.name for each in listed], "a different name each")
    if sum(each.floor for each in listed) > 0.5:
        raise invalid("classes.floor", [each.floor for each in listed], "at most 0.5 together")
    default = table.get("default", "")
    if default and default not in by_name:
        raise invalid("default", default, f"one of {', '.join(by_name)}")
    return ServiceClasses(by_name, default)
