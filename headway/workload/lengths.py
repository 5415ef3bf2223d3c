"""Distributions of lengths in tokens, drawn from a seeded generator, read from tables.

A table names its ``distribution`` and that one's parameters; ``min`` (1) and ``max`` bound what is
drawn, in tokens: ``{distribution = "lognormal", median = 700, sigma = 1.0, max = 32768}``.
``empirical`` draws from what was seen: ``values`` with ``weights`` if need be, or a ``column`` of a
``file`` (CSV or JSON lines).
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError, invalid, require_between
from headway.tables import number
from headway.workload.rows import load_column, load_columns

MOST_TOKENS = 1 << 30
_MOST_SIGMA = 20.0
Lengths = Callable[[random.Random], int]
"""Draws one length, tokens."""

_Draw = Callable[[random.Random], float]


@dataclass(frozen=True, slots=True)
class Empirical:
    """``cumulative``: the weights' running sums; (n,) both."""

    values: tuple[float, ...]
    cumulative: tuple[float, ...]

    def __call__(self, rng: random.Random) -> float:
        """Draw one of the values."""
        place = bisect_right(self.cumulative, rng.random() * self.cumulative[-1])
        return self.values[min(place, len(self.values) - 1)]


def empirical(values: Sequence[float], weights: Iterable[float] | None = None) -> Empirical:
    """``weights``: as many as values (n,), 0 or more, their sum over 0; without them all alike."""
    own_weights = [1.0] * len(values) if weights is None else [float(weight) for weight in weights]
    if len(own_weights) != len(values):
        raise invalid("weights", len(own_weights), f"as many as values ({len(values)})")
    for name, numbers in (("values", values), ("weights", own_weights)):
        for each in numbers:
            if not 0 <= each < math.inf:
                raise invalid(name, each, "finite numbers, 0 or more each")
    kept = [(v, w) for v, w in zip(values, own_weights, strict=True) if w]  # nothing of weight 0
    if not kept:
        raise invalid("the sum of weights", 0, "over 0")
    return Empirical(tuple(v for v, _ in kept), tuple(accumulate(w for _, w in kept)))


def _constant(value: float) -> _Draw:
    _no_less_than_0("value", value)
    return lambda rng: value


def _uniform(low: float, high: float) -> _Draw:
    _no_less_than_0("low", low)
    if not low <= high:
        raise invalid("high", high, f"at least low ({low:g})")
    return lambda rng: rng.uniform(low, high)


def _exponential(mean: float) -> _Draw:
    _over_0("mean", mean)
    return lambda rng: rng.expovariate(1.0 / mean)


def _lognormal(median: float, sigma: float) -> _Draw:
    _over_0("median", median)
    require_between("median", median, 0, MOST_TOKENS)
    require_between("sigma", sigma, 0, _MOST_SIGMA)
    mu = math.log(median)
    return lambda rng: rng.lognormvariate(mu, sigma)


def _beta(scale: float, a: float, b: float) -> _Draw:
    for name, value in (("scale", scale), ("a", a), ("b", b)):
        _over_0(name, value)
    return lambda rng: scale * rng.betavariate(a, b)


def _no_less_than_0(name: str, value: float) -> None:
    if not value >= 0:
        raise invalid(name, value, "0 or more")


def _over_0(name: str, value: float) -> None:
    if not value > 0:
        raise invalid(name, value, "over 0")


DISTRIBUTIONS: Mapping[str, tuple[Callable[..., _Draw], tuple[str, ...]]] = {
    "constant": (_constant, ("value",)),
    "uniform": (_uniform, ("low", "high")),
    "exponential": (_exponential, ("mean",)),
    "lognormal": (_lognormal, ("median", "sigma")),
    "beta": (_beta, ("scale", "a", "b")),
}


EMPIRICAL = "empirical"
_BOUNDS = ("distribution", "min", "max")


def parse_lengths(name: str, table: Any, folder: Path = Path()) -> Lengths:
    """Parse a table, or a number, which is every length. HeadwayError says what is wrong.

    A file that it names begins in ``folder``.
    """
    if isinstance(table, int) and not isinstance(table, bool):
        table = {"distribution": "constant", "value": table}
    if not isinstance(table, Mapping):
        raise invalid(name, table, "a table with a distribution, or a number of tokens")
    try:
        draw = _draw(name, table, folder)
    except HeadwayError as error:
        if (error.param or "").startswith(name):
            raise
        raise HeadwayError(error.code, f"{name}: {error.message}", param=error.param) from None
    low = _number(f"{name}.min", table.get("min", 1))
    high = _number(f"{name}.max", table.get("max", MOST_TOKENS))
    if not 0 <= low <= high <= MOST_TOKENS:
        raise invalid(f"{name}.min and max", (low, high), f"0 <= min <= max <= {MOST_TOKENS}")
    return lambda rng: int(min(max(draw(rng), low), high))


def _draw(name: str, table: Mapping[str, Any], folder: Path) -> _Draw:
    kind = table.get("distribution")
    known = (*DISTRIBUTIONS, EMPIRICAL)
    if not isinstance(kind, str) or kind not in known:
        raise invalid(f"{name}.distribution", kind, f"one of {', '.join(known)}")
    if kind == EMPIRICAL:
        return _empirical(name, table, folder)
    make, needed = DISTRIBUTIONS[kind]
    _refuse_others(name, table, needed)
    return make(*(_number(f"{name}.{key}", table.get(key)) for key in needed))


def _empirical(name: str, table: Mapping[str, Any], folder: Path) -> _Draw:
    if ("file" in table) == ("values" in table):
        raise invalid(f"{name}'s keys", sorted(table), "with a file or with values, one of them")
    if "file" in table:
        _refuse_others(name, table, ("file", "column"))
        file, column = (table.get(key) for key in ("file", "column"))
        if not isinstance(file, str) or not isinstance(column, str):
            raise invalid(f"{name}.file and column", (file, column), "two texts")
        return empirical(load_column(folder / file, column))
    _refuse_others(name, table, ("values", "weights"))
    values = _numbers(f"{name}.values", table["values"])
    weights = table.get("weights")
    return empirical(values, None if weights is None else _numbers(f"{name}.weights", weights))


def load_jointly(
    folder: Path, file: Any, columns: Any, where: Mapping[str, Any]
) -> Callable[[random.Random], tuple[int, ...]]:
    """Return a draw of one row of a file: its ``columns``, tokens, as they belong together.

    ``columns``: of the prompt, of reasoning if any, and of the answer. ``where``: values that
    other columns must have. HeadwayError says what is wrong.
    """
    name = "workload.classes"
    if not isinstance(file, str) or not file:
        raise invalid(f"{name}.file", file, "a path, where columns are given")
    known = isinstance(columns, list) and all(isinstance(column, str) for column in columns)
    if not known or len(columns) not in (2, 3):
        limit = "the prompt's, the answer's and, between them, that of reasoning, if any"
        raise invalid(f"{name}.columns", columns, limit)
    rows = load_columns(folder / file, columns, where)
    return lambda rng: rng.choice(rows)


def _refuse_others(name: str, table: Mapping[str, Any], needed: tuple[str, ...]) -> None:
    for key in table:
        if key not in (*needed, *_BOUNDS):
            raise invalid(f"a key of {name}", key, f"one of {', '.join(needed)}, min, max")


def _numbers(name: str, values: Any) -> list[float]:
    if not isinstance(values, list) or not values:
        raise invalid(name, values, "a list of at least one number")
    return [_number(name, value) for value in values]


def _number(name: str, value: Any) -> float:
    finite = number(name, value)
    if not math.isfinite(finite):
        raise invalid(name, value, "a finite number")
    return finite
