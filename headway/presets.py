"""Presets: each paper alone, all five as one pipeline, and what a plain deployment does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from headway.errors import invalid

Params = Mapping[str, object]
NONE: Params = MappingProxyType({})
NO_PARAMS: Mapping[str, Params] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Preset:
    """A policy for every question, by its registry name, with parameters by question."""

    description: str
    reference: str
    dispatch: str = "immediate"
    packing: str = "round-robin"
    placement: str = "least-kv"
    batching: str = "fcfs"
    rescheduling: str = "none"
    estimation: str = "bucket-mean"
    pacing: str = "off"
    burst: str = "off"
    scaling: str = "fixed"
    params: Mapping[str, Params] = field(default_factory=lambda: MappingProxyType({}))

    def params_of(self, question: str) -> Params:
        """The parameters of the policy that answers a question."""
        return self.params.get(question, NONE)

    def but(self, policies: Mapping[str, str], params: Mapping[str, Params] = NO_PARAMS) -> Preset:
        """The same but for these policies by question, "" for its own, and these parameters.

        Parameters come over those of the preset; a policy that goes takes its own along.
        """
        other = {q: name for q, name in policies.items() if name and name != getattr(self, q)}
        kept = {q: own for q, own in self.params.items() if q not in other}
        merged = {q: {**kept.get(q, NONE), **given} for q, given in params.items() if given}
        return replace(self, **other, params=MappingProxyType({**kept, **merged}))


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
        "uniboost": Preset(
            "Every pass in order of a boost that fades with service.",
            "UniBoost (Beyond Prediction)",
            batching="uniboost",
            params=_with(dispatch=_LEAST_OUTSTANDING),
        ),
        "star": Preset(
            "Running requests move by their predicted remaining length.",
            "STAR",
            rescheduling="star",
            estimation="countdown",
            params=_with(dispatch=_LEAST_OUTSTANDING),
        ),
        "pascal": Preset(
            "Reasoning before answering, answers placed at the boundary and paced.",
            "PASCAL",
            placement="pascal",
            batching="pascal",
            pacing="token-pacer",
            params=_with(dispatch=MappingProxyType({"rule": "pascal"})),
        ),
        "tokenscale": Preset(
            "Prefillers and decoders by token velocity, convertible decoders for bursts.",
            "TokenScale",
            dispatch="tokenscale",
            placement="bucket-balance",
            burst="dual-signal",
            scaling="tokenscale",
        ),
        "headway": Preset(
            "All five as one pipeline with one order in seconds.",
            "Headway",
            dispatch="sbs",
            packing="pbaa",
            placement="min-cost",
            batching="headway",
            rescheduling="star",
            estimation="countdown",
            pacing="token-pacer",
            burst="dual-signal",
            scaling="tokenscale",
            params=_with(packing=MappingProxyType({"order": "boost"})),
        ),
    }
)


def find_preset(name: str) -> Preset:
    """The preset of that name; HeadwayError with the known ones."""
    preset = PRESETS.get(name)
    if preset is None:
        raise invalid("preset", name, f"one of {', '.join(PRESETS)}")
    return preset
