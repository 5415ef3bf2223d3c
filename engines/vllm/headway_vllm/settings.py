"""The policy that orders a plain vLLM, as its environment names it."""

from __future__ import annotations

import json
import os
import re
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from headway.core.worker.settings import WorkerSettings
from headway.errors import Code, HeadwayError, require_between
from headway.policies import registry
from headway.policies.batching import Batching
from headway_vllm.order import PolicyOrder

SETTING = "HEADWAY_VLLM"
"""Environment variable with the policy as JSON; the engine's process inherits it."""
_HOST = re.compile(r"[\w.-]+|\[[0-9a-fA-F:]+\]")
_TokenIds = tuple[Annotated[int, Field(ge=0, lt=1 << 31)], ...]


@dataclass(frozen=True, slots=True, config={"extra": "forbid"})
class OrderSettings:
    """The policy that orders a vLLM engine."""

    batching: str = "fcfs"
    """A name of ``headway policies``."""
    params: dict[str, object] = Field(default_factory=dict)
    end_of_reasoning: _TokenIds = ()
    """Token ids that end the reasoning of a request that reasons."""
    start_of_reasoning: _TokenIds = ()
    reader_pace: Annotated[float, Field(gt=0.0, le=1000.0)] = 0.1
    """Seconds that a reader takes for a token."""
    metrics: int | str = ""
    """``host:port`` that serves the order's metrics, ``port`` for loopback alone, "" for none."""

    def __post_init__(self) -> None:
        host, colon, port = str(self.metrics).rpartition(":")
        is_host = bool(_HOST.fullmatch(host)) if colon else not host
        if self.metrics == "":
            return
        if not is_host or not re.fullmatch(r"\d{1,5}", port, re.ASCII):
            message = f"metrics is {self.metrics!r}; it must be a port or host:port"
            raise HeadwayError(Code.INVALID_ARGUMENT, message)
        require_between("the port of metrics", int(port), 1, 65535)

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
