"""A history before it happens: the cluster, its requests and its faults, as a text that reruns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from math import ceil
from typing import Any, get_type_hints

from headway.errors import invalid

BLOCK_SIZE = 4
MODEL = "m"
SUPERVISOR = "supervisor"
"""The supervisor's own name on the network."""


_MOST_SHOWN = 80
"""Characters of a value that a refusal repeats."""


@dataclass(frozen=True, slots=True)
class WorkerShape:
    """The size of every worker of a history."""

    num_units: int = 1
    chunk_tokens: int = 16
    num_blocks: int = 24
    host_blocks: int = 0
    prefix_caching: bool = True
    runs_ahead: bool = False
    swaps_beside: bool = False
    pass_seconds: float = 0.01
    predict_every: int = 0
    kv_seconds: float = 0.0
    """Seconds that a transfer of KV takes beyond its messages' delay."""

    def pass_time(self, num_tokens: int) -> float:
        """Return the seconds of a pass over so many tokens."""
        return self.pass_seconds * (1.0 + num_tokens / 32)


class FaultKind(Enum):
    """A kind of fault; its ``PlannedFault`` says where, when and for how long."""

    DELAY = "messages between two processes take longer, each stream its own time"
    CUT = "every stream between two processes breaks"
    HALF_OPEN = "every stream between two processes breaks, and one side learns late"
    PARTITION = "nothing passes from one process to another; the other way is open"
    UNANSWERED = "many answers between two processes are lost with their connection"
    CRASH = "a process ends at once, and starts again with nothing but what was persisted"
    REPLACE = "a worker ends at once, and another one starts under a new id"
    PAUSE = "a process stands still, as if stopped"
    SLOW = "a process takes long for everything"
    SLOW_ENGINE = "a worker's passes take long"
    FAIL_PASS = "a worker's next passes fail"
    STORE_AWAY = "the store does not answer"
    STORE_SLOW = "the store answers late"
    STORE_WIPED = "the store loses its data"
    STORE_STALE = "the store answers reads with old data"
    STORE_GARBAGE = "the store holds garbage"
    USURP = "the leader's lease ends without its knowledge: two lead for a moment"
    CLOCK = "the clock of a process's host jumps; its next life reads it"
    DRAIN = "the operator drains a worker"
    START = "the operator starts a worker"
    ROLE = "the operator changes a worker's role"
    PRESET = "the operator restarts a scheduler under another preset"
    START_FAILS = "a process ends at once, or a worker is ordered, and the next starts fail"
    START_SLOW = "a worker is ordered, and its start takes long"
    DRAIN_KILLED = "the operator drains a worker, and something kills it"


SUPERVISED = (FaultKind.START_FAILS, FaultKind.START_SLOW, FaultKind.DRAIN_KILLED)
"""Faults that only the supervisor has to live with."""


@dataclass(frozen=True, slots=True)
class Asking:
    """A client's request: tokens are drawn from ``prompt``, its number in the history."""

    name: str
    at: float
    gateway: int = 0
    num_prompt: int = 8
    shared: int = 0
    """Tokens at the beginning of the prompt that other requests have, too."""
    max_tokens: int = 8
    reasons: bool = False
    paced: bool = False
    tenant: str = ""
    """The tenant whose key it has; "" where gateways have no keys."""
    leaves: float = 0.0
    """Seconds after which the client hangs up; 0 for never."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault; ``amount`` is seconds of delay, a clock's jump, or a choice."""

    kind: FaultKind
    at: float
    lasts: float = 0.0
    on: str = ""
    to: str = ""
    amount: float = 0.0


@dataclass(frozen=True, slots=True)
class SeedScenario:
    """All that decides a history, besides the code."""

    seed: int
    preset: str = "sbs"
    num_gateways: int = 1
    num_schedulers: int = 2
    roles: tuple[str, ...] = ("unified",)
    shape: WorkerShape = field(default_factory=WorkerShape)
    skews: tuple[float, ...] = ()
    """Seconds by which hosts' clocks are ahead, in order of the processes."""
    request_timeout: float = 40.0
    standby: int = 0
    """Workers that the supervisor keeps warm."""
    policy: str = ""
    """Other policies of the schedulers than the preset's, as ``--policy`` names them."""
    past_interval: float = 0.0
    """Seconds between two writes of a gateway's past to the store; 0 for none."""
    heals_at: float = 8.0
    """Instant after which no fault is left."""
    requests: tuple[Asking, ...] = ()
    faults: tuple[PlannedFault, ...] = ()

    @property
    def tenants(self) -> tuple[str, ...]:
        """Tenants that share the cluster; none where gateways have no keys."""
        return tuple(sorted({each.tenant for each in self.requests if each.tenant}))

    @property
    def seconds_in_turn(self) -> float:
        """How long an undisturbed worker takes for all requests, one after the other."""
        shape = self.shape
        prompts = sum(ceil(each.num_prompt / shape.chunk_tokens) for each in self.requests)
        outputs = sum(each.max_tokens for each in self.requests)
        return prompts * shape.pass_time(shape.chunk_tokens) + outputs * shape.pass_time(1)

    def text(self, title: Iterable[str] = ()) -> str:
        """Return it as a text, one request or fault a line."""
        lines = [f"# {line}" for line in title]
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name not in ("requests", "faults", "shape"):
                lines.append(f"{each.name} {_text(value)}")
        lines.append(f"shape {_pairs(self.shape)}")
        lines += [f"request {_pairs(asking)}" for asking in self.requests]
        lines += [f"fault {_pairs(fault)}" for fault in self.faults]
        return "\n".join(lines) + "\n"


def parse(text: str) -> SeedScenario:
    """Read such a text; HeadwayError for a line that says nothing."""
    parsed: dict[str, Any] = {"requests": [], "faults": []}
    hints = get_type_hints(SeedScenario)
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if not name or name.startswith("#"):
            continue
        try:
            if name == "request":
                parsed["requests"].append(_read(Asking, rest))
            elif name == "fault":
                parsed["faults"].append(_read(PlannedFault, rest))
            elif name == "shape":
                parsed["shape"] = _read(WorkerShape, rest)
            else:
                parsed[name] = _value(hints[name], rest)
        except (KeyError, ValueError, TypeError) as error:
            raise invalid(
                "scenario line", line, f"as `headway vopr` writes it ({str(error)[:_MOST_SHOWN]})"
            ) from error
    if "seed" not in parsed:
        raise invalid("scenario", "a text without a seed", "what `headway vopr` writes")
    parsed |= {"requests": tuple(parsed["requests"]), "faults": tuple(parsed["faults"])}
    return SeedScenario(**parsed)


def _pairs(value: Any) -> str:
    """Return the fields that differ from their default, as name=value."""
    pairs = []
    for each in fields(value):
        own = getattr(value, each.name)
        if each.default is MISSING or own != each.default:
            pairs.append(f"{each.name}={_text(own)}")
    return " ".join(pairs)


def _text(value: Any) -> str:
    if isinstance(value, Enum):
        return value.name.lower().replace("_", "-")
    if isinstance(value, tuple):
        return ",".join(map(_text, value))
    return str(int(value)) if isinstance(value, bool) else str(value)


def _read(kind: type[Any], text: str) -> Any:
    hints = get_type_hints(kind)
    given = dict(pair.split("=", 1) for pair in text.split())
    return kind(**{name: _value(hints[name], value) for name, value in given.items()})


def _value(hint: Any, text: str) -> Any:
    if hint is FaultKind:
        return FaultKind[text.upper().replace("-", "_")]
    if hint is bool:
        return text == "1"
    if hint in (int, float, str):
        return hint(text)
    (item, _) = hint.__args__  # tuple[…, ...]
    return tuple(item(part) for part in text.split(",") if part)


def command_for(seed: int, preset: str) -> str:
    """Return the command that runs a seed again."""
    return f"headway vopr --seed {seed}" + (f" --preset {preset}" if preset else "")


def names(scenario: SeedScenario) -> Sequence[str]:
    """Return the names of all processes: gateways, schedulers, workers, predictor, autoscaler."""
    return [
        *(f"g{n}" for n in range(scenario.num_gateways)),
        *(f"s{n}" for n in range(scenario.num_schedulers)),
        *(f"w{n}" for n in range(len(scenario.roles))),
        "p0",
        "a0",
    ]
