"""Instances that change their role where one pool is to shrink while another one grows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

CHANGEABLE = ("prefill", "decode")
"""A convertible decoder's chunk is its own: it comes and goes as an instance."""


class RoleChange(NamedTuple):
    """So many instances of ``source`` are to serve ``target`` from now on."""

    source: str
    target: str
    num_instances: int


def role_changes(found: Mapping[str, int], wanted: Mapping[str, int]) -> list[RoleChange]:
    """What need not be drained here and started there; roles in only one of both stay."""
    changes: list[RoleChange] = []
    for source in CHANGEABLE:
        for target in CHANGEABLE:
            if source not in found or target not in found:
                continue
            over = found[source] - wanted.get(source, found[source])
            under = wanted.get(target, found[target]) - found[target]
            number = min(over, under)
            if number > 0:
                changes.append(RoleChange(source, target, number))
    return changes
