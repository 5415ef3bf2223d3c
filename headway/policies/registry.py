"""Every policy by its question and its name: what flags, tests and reports call them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from headway.errors import invalid
from headway.policies.batching.fcfs import Fcfs
from headway.policies.batching.sarathi import Sarathi
from headway.policies.dispatch.immediate import Immediate
from headway.policies.dispatch.sbs import StaggeredBatch
from headway.policies.estimation.bucket_mean import BucketMean
from headway.policies.packing.pbaa import Pbaa
from headway.policies.packing.round_robin import RoundRobin as RoundRobinPacking
from headway.policies.placement.iqr_lex import IqrLex
from headway.policies.placement.least_kv import LeastKv
from headway.policies.placement.lex import Lex
from headway.policies.placement.min_cost import MinCost
from headway.policies.placement.round_robin import RoundRobin as RoundRobinPlacement
from headway.policies.scaling.fixed import Fixed

Factory = Callable[..., Any]

REGISTRY: Mapping[str, Mapping[str, Factory]] = MappingProxyType(
    {
        "batching": MappingProxyType({"fcfs": Fcfs, "sarathi": Sarathi}),
        "dispatch": MappingProxyType({"immediate": Immediate, "sbs": StaggeredBatch}),
        "estimation": MappingProxyType({"bucket-mean": BucketMean}),
        "packing": MappingProxyType({"pbaa": Pbaa, "round-robin": RoundRobinPacking}),
        "placement": MappingProxyType(
            {
                "iqr-lex": IqrLex,
                "least-kv": LeastKv,
                "lex": Lex,
                "min-cost": MinCost,
                "round-robin": RoundRobinPlacement,
            }
        ),
        "scaling": MappingProxyType({"fixed": Fixed}),
    }
)


def make(question: str, name: str, **params: object) -> Any:
    """A policy by name; refuses what it does not know and lists what it does (HeadwayError)."""
    answers = REGISTRY.get(question)
    if answers is None:
        raise invalid("policy question", question, f"one of {', '.join(sorted(REGISTRY))}")
    factory = answers.get(name)
    if factory is None:
        raise invalid(question, name, f"one of {', '.join(sorted(answers))}")
    known = inspect.signature(factory).parameters
    for param in params:
        if param not in known:
            choices = ", ".join(known) or "left out: there are none"
            raise invalid(f"{question} {name} parameter", param, choices)
    return factory(**params)
