"""Limits and patience of a gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The settings that differ between models of one gateway, as in :class:`GatewaySettings`."""

    max_model_len: int
    end_of_reasoning: tuple[int, ...] = ()
    start_of_reasoning: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Limits and patience; times in seconds."""

    max_model_len: int = 1 << 40
    """Bound of prompt and output tokens together: the model's."""
    max_waiting: int = 4096
    """Requests that may wait for their first token."""
    request_timeout: float = 600.0
    scheduler_patience: float = 30.0
    """Seconds that a request waits to be handed to a scheduler."""
    worker_patience: float = 30.0
    """Seconds without workers that could serve a model, after which its requests are refused."""
    gap_patience: float = 1.0
    """Seconds that a request waits for a token that later ones have overtaken."""
    max_attempts: int = 8
    """Attempts without progress."""
    max_deaths: int = 2
    """Deaths of its workers that make a request suspect (``attempts``)."""
    death_patience: float = 5.0
    """Seconds in which a process that was cut off, and lives, is reached again.

    A link pauses for 2 s at most before it tries to, and takes 2 s.
    """
    max_failures: int = 2
    """Attempts that a worker may fail to compute."""
    first_backoff: float = 0.05
    longest_backoff: float = 2.0
    burst: str = "off"
    """The policy that labels arrivals."""
    burst_params: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    pacing: str = "off"
    """The policy that holds answering tokens."""
    pacing_params: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    end_of_reasoning: tuple[int, ...] = ()
    """Token ids before an answer; none for a model that does not reason."""
    start_of_reasoning: tuple[int, ...] = ()
    """Token ids that begin the reasoning, where known."""
    models: Mapping[str, ModelSettings] = field(default_factory=lambda: MappingProxyType({}))
    """Limits and markers of a model by its name, instead of these."""
    num_lives: int = 0
    """Lives kept of requests that have ended (``lives.py``); 0: none is written down."""
    session_idle: float = 1800.0
    """Seconds without a turn after which a session counts as over (``sessions.py``)."""
    num_sessions: int = 10_000
    """Idle sessions kept."""

    def length_of(self, model: str) -> int:
        """Return the bound of a model's prompt and output tokens together."""
        own = self.models.get(model)
        return self.max_model_len if own is None else own.max_model_len
