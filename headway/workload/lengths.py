"""Distributions of lengths in tokens, drawn from a seeded generator, read from tables.

A table names its ``distribution`` and that one's parameters; ``min`` (1) and ``max`` bound what is
drawn, in tokens: ``{distribution = "lognormal", median = 700, sigma = 1.0, max = 32768}``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from headway.errors import HeadwayError, invalid

MOST_TOKENS = 1 << 30
Lengths = Callable[[random.Random], int]
"""Draws one length, tokens."""

_Draw = Callable[[random.Random], float]


def _constant(value: float) -> _Draw:
    return lambda rng: value


def _uniform(low: float, high: float) -> _Draw:
    if not low <= high:
        raise invalid("high", high, f"at least low ({low:g})")
    return lambda rng: rng.uniform(low, high)


def _exponential(mean: float) -> _Draw:
    _over_0("mean", mean)
    return lambda rng: rng.expovariate(1.0 / mean)


def _lognormal(median: float, sigma: float) -> _Draw:
    _over_0("median", median)
    mu = math.log(median)
    return lambda rng: rng.lognormvariate(mu, sigma)


def _beta(scale: float, a: float, b: float) -> _Draw:
    for name, value in (("scale", scale), ("a", a), ("b", b)):
        _over_0(name, value)
    return lambda rng: scale * rng.betavariate(a, b)


def _over_0(name: str, value: float) -> None:
    if not value > 0:
        raise invalid(name, value, "over 0")


DISTRIBUTIONS: Mapping[str, tuple[Callable[..., _Draw], tuple[str, ...]]] = MappingProxyType(
    {
        "constant": (_constant, ("value",)),
        "uniform": (_uniform, ("low", "high")),
        "exponential": (_exponential, ("mean",)),
        "lognormal": (_lognormal, ("median", "sigma")),
        "beta": (_beta, ("scale", "a", "b")),
    }
)


def parse_lengths(name: str, table: Any) -> Lengths:
    """From a table, or from a number: always that. HeadwayError says what is wrong with it."""
    if isinstance(table, int) and not isinstance(table, bool):
        table = {"distribution": "constant", "value": table}
    if not isinstance(table, Mapping):
        raise invalid(name, table, "a table with a distribution, or a number of tokens")
    kind = table.get("distribution")
    if not isinstance(kind, str) or kind not in DISTRIBUTIONS:
        raise invalid(f"{name}.distribution", kind, f"one of {', '.join(DISTRIBUTIONS)}")
    make, needed = DISTRIBUTIONS[kind]
    for key in table:
        if key not in (*needed, "distribution", "min", "max"):
            raise invalid(f"a key of {name}", key, f"one of {', '.join(needed)}, min, max")
    try:
        draw = make(*(_number(f"{name}.{key}", table.get(key)) for key in needed))
    except HeadwayError as error:
        raise HeadwayError(error.code, f"{name}: {error.message}", param=error.param) from None
    low = _number(f"{name}.min", table.get("min", 1))
    high = _number(f"{name}.max", table.get("max", MOST_TOKENS))
    if not 0 <= low <= high <= MOST_TOKENS:
        raise invalid(f"{name}.min and max", (low, high), f"0 <= min <= max <= {MOST_TOKENS}")
    return lambda rng: int(min(max(draw(rng), low), high))


def _number(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise invalid(name, value, "a finite number")
    return float(value)
