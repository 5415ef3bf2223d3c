"""The policy that orders a plain vLLM, as its environment names it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from headway.core.reasoning import Markers
from headway.core.worker.settings import WorkerSettings
from headway.errors import Code, HeadwayError, require_between
from headway.policies import registry
from headway.policies.batching import Batching
from headway.service_class import shipped_classes
from headway_vllm.order import PolicyOrder

SETTING = "HEADWAY_VLLM"
"""Environment variable with the policy as JSON; the engine's process inherits it."""
_HOST = re.compile(r"[\w.-]+|\[[0-9a-fA-F:]+\]")
_INTERACTIVE, _AGENT = (shipped_classes().by_name[name] for name in ("interactive", "agent"))
DEFAULT_PARAMS: Mapping[str, object] = {
    "long_tokens": 0,
    "unread_wait": _AGENT.deadline,
    "reserve": 0.0,
}
"""Parameters of ``headway`` as the default: who reasons yields to readers from its first token on,
until it is as late as an agent's deadline. Blocks change hands when somebody needs them, since what
a request loses here is computed again."""
DEFAULT_PATIENCE = (_INTERACTIVE.ttft or 0.0) / 2
"""Half of the time to the first token that is promised to whoever reads. Most find room by then."""
_TokenIds = tuple[Annotated[int, Field(ge=0, lt=1 << 31)], ...]


@dataclass(frozen=True, slots=True, config={"extra": "forbid"})
class OrderSettings:
    """The policy that orders a vLLM engine."""

    batching: str = ""
    """A name of ``headway policies``; "": ``headway`` where the model is known to reason, else
    vLLM's own ``fcfs``, step for step."""
    params: dict[str, object] = Field(default_factory=dict)
    end_of_reasoning: _TokenIds = ()
    """Token ids that end the reasoning of a request that reasons; (): as the model has them."""
    start_of_reasoning: _TokenIds = ()
    reader_pace: Annotated[float, Field(gt=0.0, le=1000.0)] = 0.1
    """Seconds that a reader takes for a token."""
    patience: Annotated[float, Field(ge=0.0, le=3600.0)] | None = None
    """Seconds after its arrival from which a request may take the blocks of worse ones; None: 0 for
    a policy that is named, else ``DEFAULT_PATIENCE``."""
    metrics: int | str = ""
    """``host:port`` that serves the order's metrics, ``port`` for loopback alone, "" for none."""
    steps: int | str = ""
    """``host:port`` or ``port`` at which the ends of steps are published, "" for nowhere."""

    def __post_init__(self) -> None:
        _require_address("metrics", str(self.metrics))
        _require_address("steps", str(self.steps))

    def order(self, find_markers: Callable[[], Markers] = Markers) -> PolicyOrder:
        """Return the order; HeadwayError for a policy or parameter that does not exist.

        ``find_markers``: what finds the tokens around the model's reasoning, if none are given.
        """
        markers = Markers(self.end_of_reasoning, self.start_of_reasoning)
        if not markers.end:
            markers = find_markers()
        name, params = self.batching, self.params
        if not name and markers.end:
            name, params = "headway", {**DEFAULT_PARAMS, **params}
        policy: Batching = registry.make("batching", name or "fcfs", **params)
        readers = WorkerSettings(
            end_of_reasoning=markers.end,
            start_of_reasoning=markers.start,
            reader_pace=self.reader_pace,
        )
        patience = self.patience
        if patience is None:
            patience = 0.0 if self.batching else DEFAULT_PATIENCE
        return PolicyOrder(policy, readers, patience)

    def said(self, order: PolicyOrder) -> str:
        """Say in one line by which policy an order of these settings goes, and why."""
        if self.batching:
            return f"requests in the order of {self.batching}, which {SETTING} names"
        end = order.markers.end
        if end:
            return f"requests in Headway's order: the model's reasoning ends with tokens {[*end]}"
        return (
            "requests in vLLM's own order: the model shows no reasoning; --reasoning-parser, or "
            f"end_of_reasoning in {SETTING}, tells where its own ends"
        )


def _require_address(name: str, address: str) -> None:
    host, colon, port = address.rpartition(":")
    is_host = bool(_HOST.fullmatch(host)) if colon else not host
    if not address:
        return
    if not is_host or not re.fullmatch(r"\d{1,5}", port, re.ASCII):
        message = f"{name} is {address!r}; it must be a port or host:port"
        raise HeadwayError(Code.INVALID_ARGUMENT, message)
    require_between(f"the port of {name}", int(port), 1, 65535)


def read_settings() -> OrderSettings:
    """Return the settings of the environment; HeadwayError for what is no setting."""
    text = os.environ.get(SETTING, "") or "{}"
    try:
        given = json.loads(text)
        if not isinstance(given, dict):
            message = f"it is {text[:80]}; it must be an object, such as {{}}"
            raise HeadwayError(Code.INVALID_ARGUMENT, message)
        return TypeAdapter(OrderSettings).validate_python(given)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        message = f"{SETTING}: {name}: {first['msg']}"
        raise HeadwayError(Code.INVALID_ARGUMENT, message) from error
    except ValueError as error:
        raise HeadwayError(Code.INVALID_ARGUMENT, f"{SETTING} is no JSON: {error}") from error
    except HeadwayError as error:
        raise HeadwayError(error.code, f"{SETTING}: {error.message}") from error
