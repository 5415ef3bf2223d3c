"""Topologies of the same GPUs, by names such as ``2U`` and ``1P+2D+1C``: who does what.

``U`` instances are unified, ``P`` prefill, ``D`` decode, ``C`` are convertible decoders. ``2U/512``
are unified ones whose passes have 512 tokens at most. Every part may say so: ``3P/8192+1D``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from headway.cluster import Role
from headway.cost.schema import Profile
from headway.sim.spec import Instances
from headway.sim.worker import InstanceSpec

_ROLES = MappingProxyType(
    {"U": Role.UNIFIED, "P": Role.PREFILL, "D": Role.DECODE, "C": Role.CONVERTIBLE}
)

_CHUNKS = (768, 512)
"""Tokens of a pass that an operator tries where the profile's chunk delays readers."""


def topologies(num_instances: int) -> Sequence[str]:
    """Return all of so many instances, the simplest first.

    That is unified, each split, and each split with one or all of its decoders convertible.
    """
    splits = [(n, num_instances - n) for n in range(1, num_instances)]
    return [
        f"{num_instances}U",
        *(f"{prefill}P+{decode}D" for prefill, decode in splits),
        *(f"{prefill}P+{decode - 1}D+1C" for prefill, decode in splits if decode > 1),
        *(f"{prefill}P+{decode}C" for prefill, decode in splits),
    ]


def set_ups(topologies: Sequence[str]) -> Sequence[str]:
    """Return topologies, and then the unified ones with smaller chunks."""
    unified = [each for each in topologies if not is_split(each)]
    return [*topologies, *(f"{each}/{chunk}" for each in unified for chunk in _CHUNKS)]


def is_split(topology: str) -> bool:
    """Return whether some instances only prefill."""
    return "P" in topology


def instances(topology: str, prefill: Profile, others: Profile) -> Instances:
    """Return the instances of a topology, with the profile of prefillers and of all others."""
    parts = (part.partition("/") for part in topology.split("+"))
    return tuple(
        (_with_chunk(_ROLES[part[-1]], prefill, others, chunk), int(part[:-1]))
        for part, _, chunk in parts
    )


def _with_chunk(role: Role, prefill: Profile, others: Profile, chunk: str) -> InstanceSpec:
    """Return an instance with this chunk; none larger than the profile's but a prefiller's."""
    profile = prefill if role is Role.PREFILL else others
    if chunk and role is Role.PREFILL:
        profile = replace(profile, prefill_chunk_tokens=int(chunk))
    elif chunk:
        profile = replace(profile, chunk_tokens=min(int(chunk), profile.chunk_tokens))
    return InstanceSpec(role, profile)
