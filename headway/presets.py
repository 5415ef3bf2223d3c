"""Presets: each paper alone, all five as one pipeline, and what a plain deployment does.

A preset is a policy for every question. ``parse_choice`` reads what a user puts over it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import NamedTuple

from headway.errors import invalid

Params = Mapping[str, object]
NONE: Params = MappingProxyType({})
NO_PARAMS: Mapping[str, Params] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Preset:
    """A policy for every question by its registry name, and their parameters by question."""

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
        """Return the parameters of the policy that answers a question."""
        return self.params.get(question, NONE)

    def but(self, policies: Mapping[str, str], params: Mapping[str, Params] = NO_PARAMS) -> Preset:
        """Return a copy with these policies by question, "" for its own, and these parameters.

        Parameters come over those of the preset; a policy that is replaced takes its own along.
        """
        other = {q: name for q, name in policies.items() if name and name != getattr(self, q)}
        kept = {q: own for q, own in self.params.items() if q not in other}
        merged = {q: {**kept.get(q, NONE), **given} for q, given in params.items() if given}
        return replace(self, **other, params=MappingProxyType({**kept, **merged}))


def _with(**params: Params) -> Mapping[str, Params]:
    return MappingProxyType(params)


_LEAST_OUTSTANDING = MappingProxyType({"rule": "least-outstanding"})

PRESETS: Mapping[str, Preset] = {
    "vllm-like": Preset(
        "Requests go at once to the instance with the fewest; first come, first served.",
        "vLLM's defaults behind a least-outstanding router",
        params=_with(dispatch=_LEAST_OUTSTANDING),
    ),
    "lmetric": Preset(
        "Requests go at once to the unit that their prompts delay least, cached ones counted.",
        "vLLM's defaults behind a router by LMETRIC",
        dispatch="lmetric",
        packing="pbaa",
    ),
    "sbs": Preset(
        "Staggered windows packed over DP units, decode placed behind an IQR mask.",
        "SBS (Staggered Batch Scheduling), and requests with a cached prefix to their own unit",
        dispatch="sbs-warm",
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
        placement="star",
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
        dispatch="sbs-warm",
        packing="pbaa",
        placement="min-cost",
        batching="headway",
        rescheduling="star",
        estimation="countdown",
        pacing="token-pacer",
        burst="dual-signal",
        scaling="headway",
        params=_with(
            dispatch=MappingProxyType(
                {"passes": True, "conserves": True, "base_share": 1 / 16, "late_weight": 10.0}
            ),
            packing=MappingProxyType({"order": "readers"}),
        ),
    ),
}


PLAIN = Preset("One policy for every question, the simplest.", "")
"""The policies that a preset has where it names none."""
UNIFIED_PRESET = "headway"
"""The preset whose workers are unified unless somebody says otherwise (``docs/topology.md``)."""
SCALED_BY_REQUESTS, SCALED_BY_PROFILE = "blitzscale", "tokenscale"
"""Scaling policies for a preset whose own keeps the number of instances."""
QUESTIONS = tuple(f.name for f in fields(Preset) if isinstance(f.default, str))


def find_preset(name: str) -> Preset:
    """Return the preset of that name; HeadwayError with the known ones."""
    preset = PRESETS.get(name)
    if preset is None:
        raise invalid("preset", name, f"one of {', '.join(PRESETS)}")
    return preset


class PresetChoice(NamedTuple):
    """Policies and parameters by question, for ``Preset.but``; values are still texts."""

    policies: Mapping[str, str] = MappingProxyType({})
    params: Mapping[str, Params] = NO_PARAMS

    def texts(self) -> tuple[str, str]:
        """Return what ``parse_choice`` reads this from."""
        values = [
            f"{question}.{param}={value}"
            for question, params in self.params.items()
            for param, value in params.items()
        ]
        policies = [f"{question}={name}" for question, name in self.policies.items()]
        return ",".join(policies), ",".join(values)


def parse_choice(policy: str, settings: str) -> PresetChoice:
    """Read ``batching=edf,packing=pbaa`` and ``batching.gamma=0.1,packing.order=boost``.

    Of two values for one thing the last holds. HeadwayError for another form or question; names,
    parameters and values are checked where the policy is found.
    """
    policies = dict(_pairs("--policy", policy, "QUESTION=NAME, for example batching=trail"))
    for question in policies:
        _require_question("--policy", question)
    form = "QUESTION.PARAMETER=VALUE, for example batching.gamma=0.1"
    params: dict[str, dict[str, object]] = {}
    for key, value in _pairs("--set", settings, form):
        question, _, param = key.partition(".")
        _require_question("--set", question)
        if not param:
            raise invalid("--set", f"{key}={value}", form)
        params.setdefault(question, {})[param] = value
    return PresetChoice(policies, params)


def _pairs(flag: str, text: str, form: str) -> Iterator[tuple[str, str]]:
    """Split at each comma that a new ``key=`` follows: a value may have commas of its own."""
    for part in re.split(r",(?=\s*[\w.-]+\s*=)", text) if text.strip() else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            raise invalid(flag, part.strip(), form)
        yield key, value


def _require_question(flag: str, question: str) -> None:
    if question not in QUESTIONS:
        raise invalid(f"{flag}'s question", question, f"one of {', '.join(QUESTIONS)}")
