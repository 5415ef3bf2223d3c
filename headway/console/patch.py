"""Changes of a JSON object, as a merge patch (RFC 7396): what the console's stream sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = Any


def merge_patch(before: Mapping[str, Json], after: Mapping[str, Json]) -> dict[str, Json]:
    """Return what turns ``before`` into ``after``, {} for nothing.

    Objects are compared member by member, anything else as a whole. A member that is None counts
    as one that is not there, because None in a patch removes a member.
    """
    patch: dict[str, Json] = {}
    for name in before.keys() - after.keys():
        if before[name] is not None:
            patch[name] = None
    for name, value in after.items():
        old = before.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            if inner := merge_patch(old, value):
                patch[name] = inner
        elif old != value:
            patch[name] = value
    return patch


def apply_patch(before: Mapping[str, Json], patch: Mapping[str, Json]) -> dict[str, Json]:
    """Return the object that a patch makes of another."""
    after = dict(before)
    for name, value in patch.items():
        if value is None:
            after.pop(name, None)
        elif isinstance(value, Mapping):
            old = after.get(name)
            after[name] = apply_patch(old if isinstance(old, Mapping) else {}, value)
        else:
            after[name] = value
    return after
