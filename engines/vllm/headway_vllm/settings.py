"""The policy that orders a plain vLLM, as its environment names it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from headway.core.worker.settings import WorkerSettings
from headway.errors import Code, HeadwayError
from headway.policies import registry
from headway.policies.batching import Batching
from headway_vllm.order import PolicyOrder

SETTING = "HEADWAY_VLLM"
"""Environment variable with the policy as JSON; the engine's process inherits it."""
_FIELDS = (
    *("batching", "params", "end_of_reasoning", "start_of_reasoning", "reader_pace"),
    "metrics",
)
_ADDRESS = re.compile(r"(([\w.-]+|\[[0-9a-fA-F:]+\]):)?\d{1,5}|")


@dataclass(frozen=True, slots=True)
class OrderSettings:
    """The policy that orders a vLLM engine."""

    batching: str = "fcfs"
    """A name of ``headway policies``."""
    params: Mapping[str, object] = field(default_factory=dict)
    end_of_reasoning: tuple[int, ...] = ()
    """Token ids that end the reasoning of a request that reasons."""
    start_of_reasoning: tuple[int, ...] = ()
    reader_pace: float = 0.1
    """Seconds that a reader takes for a token."""
    metrics: str = ""
    """``host:port`` that serves the order's metrics, ``port`` for loopback alone, "" for none."""

    def __post_init__(self) -> None:
        if (
            not _ADDRESS.fullmatch(self.metrics)
            or int(self.metrics.rpartition(":")[2] or 0) > 65535
        ):
            message = f"{SETTING}: metrics is {self.metrics!r}; it must be a port or host:port"
            raise HeadwayError(Code.INVALID_ARGUMENT, message)

    def order(self) -> PolicyOrder:
        """Return the order; HeadwayError for a policy or parameter that does not exist."""
        policy: Batching = registry.make("batching", self.batching, **self.params)
        readers = WorkerSettings(
            end_of_reasoning=self.end_of_reasoning,
            start_of_reasoning=self.start_of_reasoning,
            reader_pace=self.reader_pace,
        )
        return PolicyOrder(policy, readers)


def read_settings() -> OrderSettings:
    """Return the settings of the environment; HeadwayError for what is no setting."""
    try:
        given = json.loads(os.environ.get(SETTING, "") or "{}")
    except ValueError as error:
        message = f"{SETTING} is no JSON: {error}"
        raise HeadwayError(Code.INVALID_ARGUMENT, message) from error
    unknown = sorted(set(given) - set(_FIELDS))
    if unknown:
        message = f"{SETTING} has {unknown[0]!r}; it knows {', '.join(_FIELDS)}"
        raise HeadwayError(Code.INVALID_ARGUMENT, message)
    for name in ("end_of_reasoning", "start_of_reasoning"):
        given[name] = tuple(given.get(name, ()))
    return OrderSettings(**given)
