"""The steps of a card's bench: their names, parts and limits, and what all of them are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class CardStep:
    """A step: the ``module`` that runs it, its ``parts`` in order, and its usual limit."""

    module: str
    parts: tuple[str, ...]
    minutes: float
    says: str


STEPS: Mapping[str, CardStep] = MappingProxyType(
    {
        "passes": CardStep(
            "bench.card.passes",
            ("check", "sweep", "engine", "profile", "peer"),
            8.5,
            "kernels, the card's rates, forward passes, transformers' continuous batching",
        ),
        "choices": CardStep(
            "bench.card.choices",
            ("blocks", "prompts", "graphs"),
            5.0,
            "block sizes, backends for prompts, recorded batch sizes",
        ),
        "shares": CardStep(
            "bench.card.shares",
            ("kinds", "ahead"),
            6.0,
            "where a decode pass's time goes, with and without planning ahead",
        ),
        "cluster": CardStep(
            "bench.card.cluster",
            ("unified", "split", "profile", "check"),
            9.0,
            "the whole cluster on the card: three rates, a profile, its errors",
        ),
        "demo": CardStep(
            "bench.card.cluster",
            ("demo",),
            5.0,
            "two presets under a burst and an overload, on the card",
        ),
        "vllm": CardStep(
            "bench.card.over_vllm",
            ("answers", "kv", "decode"),
            8.0,
            "Headway over vLLM on the card, beside the same vLLM by itself",
        ),
    }
)
SHAPE_NAMES = ("llama-8b", "tiny")


@dataclass(frozen=True, slots=True)
class CardSetting:
    """The options of a step; ``folder`` is for a model's files and for logs."""

    shape: str
    device: str
    repeats: int
    parts: tuple[str, ...]
    folder: Path

    @property
    def is_small(self) -> bool:
        """Return whether this is a dry run."""
        return self.shape == "tiny"
