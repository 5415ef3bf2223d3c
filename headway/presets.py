"""Presets: a paper alone, and what a plain deployment does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from headway.errors import invalid

Params = Mapping[str, object]
NONE: Params = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Preset:
    """A policy for every question, by its registry name, with parameters by question."""

    description: str
    reference: str
    dispatch: str = "immediate"
    packing: str = "round-robin"
    placement: str = "least-kv"
    batching: str = "fcfs"
    params: Mapping[str, Params] = field(default_factory=lambda: MappingProxyType({}))

    def params_of(self, question: str) -> Params:
        """The parameters of the policy that answers a question."""
        return self.params.get(question, NONE)


def _with(**params: Params) -> Mapping[str, Params]:
    return MappingProxyType(params)


_LEAST_OUTSTANDING = MappingProxyType({"rule": "least-outstanding"})

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "vllm-like": Preset(
            "Requests go at once to the instance with the fewest; first come, first served.",
            "vLLM's defaults behind a least-outstanding router",
            params=_with(dispatch=_LEAST_OUTSTANDING),
        ),
        "sbs": Preset(
            "Staggered windows packed over DP units, decode placed behind an IQR mask.",
            "SBS (Staggered Batch Scheduling)",
            dispatch="sbs",
            packing="pbaa",
            placement="iqr-lex",
        ),
    }
)


def find_preset(name: str) -> Preset:
    """The preset of that name; HeadwayError with the known ones."""
    preset = PRESETS.get(name)
    if preset is None:
        raise invalid("preset", name, f"one of {', '.join(PRESETS)}")
    return preset
