"""The systems that studies compare: plain orders, each paper alone, ours, and variants of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from headway.presets import PRESETS, Preset
from studies.runs import with_policies

PLAIN, OURS = "vllm-like", "headway"
CHATS_FIRST, DEADLINE = "chats-first", "slo-deadline"
ORDERS = (CHATS_FIRST, DEADLINE)
"""Orders that take an afternoon, on the plain deployment."""
ROUTED = "lmetric, qoserve"
RECENT = ("qoserve", "jitserve", "split", "lmetric", ROUTED)
"""Orders of 2026 on the plain deployment, a router for it, and that before the first of them."""
SINGLES = ("sbs", "uniboost", "star", "pascal", "tokenscale")
"""Each paper alone."""
RIVALS = (PLAIN, *ORDERS, *RECENT, *SINGLES)
BY_LENGTH = "headway, by length"
"""Ours, where the operator wants the most SLOs kept in an overload that lasts."""
STAGES: Mapping[str, Mapping[str, str]] = {
    "without 2 (prefill)": {"dispatch": "immediate", "packing": "round-robin"},
    "without 3 (decode placement)": {"placement": "least-kv"},
    "without 4 (order)": {"batching": "fcfs"},
    "without 5 (moves)": {"rescheduling": "none"},
}
"""Ours without one of its stages."""
_LENGTH_WEIGHT = 10.0


def preset_of(system: str) -> Preset:
    """Return the policies of a system."""
    if system == BY_LENGTH:
        return PRESETS[OURS].but({}, {"batching": {"length_weight": _LENGTH_WEIGHT}})
    if system == ROUTED:
        return PRESETS["lmetric"].but({"batching": "qoserve"})
    if system not in (*PRESETS, *STAGES):
        return with_policies(PLAIN, params={"dispatch": {"rule": "least-kv"}}, batching=system)
    if system not in STAGES:
        return PRESETS[system]
    ours, plain = PRESETS[OURS], PRESETS[PLAIN]
    changed = replace(ours, **STAGES[system])  # type: ignore[arg-type]  # names of policies
    kept = {q: p for q, p in ours.params.items() if q not in STAGES[system]}
    given = {q: p for q, p in plain.params.items() if q in STAGES[system]}
    return replace(changed, params=MappingProxyType({**kept, **given}))
