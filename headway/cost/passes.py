"""Measured passes as text: what ``headway profile fit`` reads.

CSV with a row a pass of one DP unit
(``seconds,prefill_tokens,prefill_context,batch,kv_tokens``), or JSON lines of
``{"seconds": …, "units": [{"prefill_tokens": …, …}, …]}``; what is left out is 0. A line of
``{"worker": …}``, which a worker's own record begins with, is passed over.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from headway.cost.fit import MeasuredPass
from headway.cost.pass_time import Share
from headway.errors import invalid

MOST_LINE_CHARS = 1 << 20


def parse_passes(lines: Iterable[str], source: str) -> list[MeasuredPass]:
    """Return all passes in order; HeadwayError names the line, the value and its limit."""
    numbered = ((n, line.strip()) for n, line in enumerate(lines, start=1) if line.strip())
    first = next(numbered, None)
    if first is None:
        raise invalid(source, "empty", "at least a header and some passes")
    if first[1].startswith("{"):
        rows = numbered if first[1].startswith('{"worker":') else chain([first], numbered)
        return [_of_json(n, line, source) for n, line in rows]
    return list(_of_csv(first[1], numbered, source))


def _of_csv(header: str, rest: Iterator[tuple[int, str]], source: str) -> Iterator[MeasuredPass]:
    names = [name.strip() for name in header.split(",")]
    _refuse_others(f"{source}, line 1", names)
    for number, line in rest:
        values = next(csv.reader([line]))
        if len(values) != len(names):
            raise invalid(f"{source}, line {number}", line[:80], f"{len(names)} values")
        row = dict(zip(names, values, strict=True))
        yield _measured(f"{source}, line {number}", row.pop("seconds", None), [row])


def _of_json(number: int, line: str, source: str) -> MeasuredPass:
    where = f"{source}, line {number}"
    try:
        row = json.loads(line[:MOST_LINE_CHARS])
    except (ValueError, RecursionError):
        row = None
    units = row.get("units") if isinstance(row, dict) else None
    if not isinstance(units, list) or not all(isinstance(unit, dict) for unit in units):
        raise invalid(where, line[:80], 'an object with "seconds" and a list of "units"')
    for unit in units:
        _refuse_others(where, list(unit))
    return _measured(where, row.get("seconds"), units)


def _measured(where: str, seconds: Any, units: Iterable[Mapping[str, Any]]) -> MeasuredPass:
    shares = [Share(*(int(_number(where, n, u.get(n, 0))) for n in Share._fields)) for u in units]
    return MeasuredPass(shares, _number(where, "seconds", seconds))


def _number(where: str, name: str, value: Any) -> float:
    try:
        number = float("nan") if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not 0.0 <= number < 1e18:
        raise invalid(f"{where}: {name}", value, "a number, 0 or more")
    return number


def _refuse_others(where: str, names: Iterable[str]) -> None:
    known = ("seconds", *Share._fields)
    for name in names:
        if name not in known:
            raise invalid(f"{where}: a column", name, f"one of {', '.join(known)}")
