"""A kind of request: its share, its lengths and its SLO, read from a scenario."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.bounds import Bounded, between, over
from headway.errors import invalid, require_between, require_over
from headway.service_class import NO_CLASSES, NO_STANDING, ServiceClasses, Standing
from headway.tables import number, read, refuse_others
from headway.workload.lengths import load_jointly, parse_lengths

DrawLengths = Callable[[random.Random], tuple[int, int, int]]
"""Draws a request's prompt, reasoning and answer tokens."""
_LENGTHS = ("prompt", "reasoning", "answer")
_STANDING = ("tenant", "tenant_share", "class")
_JOINT = ("file", "columns", "where")
_NONE: dict[str, Any] = {"distribution": "constant", "value": 0, "min": 0}


@dataclass(frozen=True, slots=True)
class SloLimits(Bounded):
    """Limits in seconds; None: none.

    ``ttfat_per_reasoning_token`` is added to ``ttfat`` for every reasoning token.
    """

    ttft: float | None = over(0, default=None)
    ttfat: float | None = over(0, default=None)
    tpot: float | None = over(0, default=None)
    ttlt: float | None = over(0, default=None)
    ttfat_per_reasoning_token: float = between(0, 3600, default=0.0)


@dataclass(frozen=True, slots=True)
class RequestClass:
    """A kind of request, its share of all, and its own SLO, instead of the others', if any.

    ``read``: the share whose clients read the answer as it comes; others wait for its end.
    ``standing``: whom they count for, and their service class.
    """

    name: str
    share: float
    lengths: DrawLengths
    slo: SloLimits | None = None
    read: float = 1.0
    standing: Standing = NO_STANDING


def parse_class(
    table: Mapping[str, Any], folder: Path, services: ServiceClasses = NO_CLASSES
) -> RequestClass:
    """Parse a scenario's table; HeadwayError says what is wrong. Files begin in ``folder``.

    ``services``: the service classes that it may name.
    """
    known = ("name", "share", *_LENGTHS, *_JOINT, "slo", "read", *_STANDING)
    refuse_others("workload.classes", table, known)
    share = number("workload.classes.share", table.get("share", 1.0))
    require_over("workload.classes.share", share, 0)
    slo = table.get("slo")
    own = None if slo is None else read(SloLimits, slo, "workload.classes.slo")
    read_share = number("workload.classes.read", table.get("read", 1.0))
    require_between("workload.classes.read", read_share, 0, 1)
    name = str(table.get("name", "request"))
    standing = _standing(table, services)
    return RequestClass(name, share, _lengths(table, folder), own, read_share, standing)


def _standing(table: Mapping[str, Any], services: ServiceClasses) -> Standing:
    """Return the tenant and the service class that a table names, if any."""
    for name in ("tenant", "class"):
        if not isinstance(table.get(name, ""), str):
            raise invalid(f"workload.classes.{name}", table[name], "a name")
    share = number("workload.classes.tenant_share", table.get("tenant_share", 1.0))
    require_between("workload.classes.tenant_share", share, 1e-6, 1e6)
    return Standing(str(table.get("tenant", "")), share, services.find(str(table.get("class", ""))))


def _lengths(table: Mapping[str, Any], folder: Path) -> DrawLengths:
    """Return lengths that are drawn each for itself, or from the rows of one file."""
    if not any(key in table for key in _JOINT):
        return _separate(table, folder)
    own = [key for key in _LENGTHS if key in table]
    if own:
        raise invalid("workload.classes' keys", own, "left out: file and columns give all lengths")
    where = table.get("where", {})
    if not isinstance(where, Mapping):
        raise invalid("workload.classes.where", where, 'a table: where = { kind = "chat" }')
    draw = load_jointly(folder, table.get("file"), table.get("columns"), where)

    def drawn(rng: random.Random) -> tuple[int, int, int]:
        prompt, *reasoning, answer = draw(rng)
        return max(1, prompt), *(reasoning or [0]), max(1, answer)  # type: ignore[return-value]

    return drawn


def _separate(table: Mapping[str, Any], folder: Path) -> DrawLengths:
    prompt, reasoning, answer = (
        parse_lengths(f"workload.classes.{name}", table.get(name, default), folder)
        for name, default in zip(_LENGTHS, (None, {**_NONE}, None), strict=True)
    )
    return lambda rng: (max(1, prompt(rng)), reasoning(rng), max(1, answer(rng)))
