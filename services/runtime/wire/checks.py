"""Checks of a peer's messages: every refusal names the value and its limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, TypeVar

from headway.blocks import NAME_BYTES
from headway.cluster import WorkerInfo
from headway.core.autoscaler.events import RateReport
from headway.cost.costs import Source
from headway.errors import invalid
from headway.messages import (
    CachedPrefixes,
    ControlHello,
    Dispatch,
    EndForward,
    FinishedRequest,
    KvHeader,
    KvPart,
    Lost,
    MeasuredCosts,
    PassWork,
    Placed,
    Rejected,
    Snapshot,
    Tuned,
    UsedConstant,
    WantedReports,
)
from headway.picture import MovePicture, WindowPicture, WorkerPicture
from headway.policies.scaling.protocol import PoolLoad, WorkSample
from headway.request import Constraints, Request, SamplingParams, StreamKey
from headway.service_class import Standing

MAX_ID_CHARS = 256
MAX_TEXT_CHARS = 4096
MAX_DP_UNITS = 4096
MAX_ENTRIES = 65_536
"""Messages in a message: two bytes of an empty one become 200 here, and take microseconds."""
MAX_CONSTANTS = 64
MAX_WORKS = 64
MAX_ADAPTERS = 1024
MAX_KV_DIMENSION = 2**31
MAX_KV_BYTES = 2**42
_MOST_AHEAD = 86_400.0

Check = Callable[[Any, str], Any]
"""A check of one field: takes its value and name; returns the value to use or raises."""
V = TypeVar("V")


def known(table: Mapping[int, V], number: int, name: str) -> V:
    """Return the enum's member; refuse an unknown number."""
    value = table.get(number)
    if value is None:
        raise invalid(name, number, f"one of {', '.join(str(n) for n in table)}")
    return value


def an_id(value: str, name: str) -> str:
    """Refuse an empty or an overlong name."""
    if not 0 < len(value) <= MAX_ID_CHARS:
        raise invalid(name, value, f"1 to {MAX_ID_CHARS} characters long")
    return value


def an_id_or_none(value: str, name: str) -> str:
    """Refuse an overlong name; "" names nothing."""
    return an_id(value, name) if value else value


def _places(values: Sequence[str], name: str) -> Sequence[str]:
    require_at_most(values, 2, name)
    return tuple(an_id(value, name) for value in values)


def a_unit(value: int, name: str) -> int:
    """Refuse a DP unit that no worker has."""
    if value >= MAX_DP_UNITS:
        raise invalid(name, value, f"below {MAX_DP_UNITS}")
    return value


def text(value: str, name: str = "") -> str:
    """Cut an overlong message for people."""
    return value if len(value) <= MAX_TEXT_CHARS else value[:MAX_TEXT_CHARS] + "…"


def finite(value: float, name: str) -> float:
    """Refuse infinities and NaN."""
    if not math.isfinite(value):
        raise invalid(name, value, "a finite number")
    return value


def unchecked(value: V, name: str) -> V:
    """Return any value: the dataclass or its reader refuses wrong ones."""
    return value


def require_at_most(values: Sized, most: int, name: str) -> None:
    """Refuse more than so many entries, before any of them is looked at."""
    if len(values) > most:
        raise invalid(f"the number of {name}", len(values), f"at most {most}")


def most_of(kind: type, name: str) -> Callable[[Sized], None]:
    """Return what refuses too many messages in one field."""
    most = MOST_ENTRIES.get((kind, name), MAX_ENTRIES)
    return lambda values: require_at_most(values, most, name)


def key(gateway_id: str, stream_id: int) -> StreamKey:
    """Return a stream's name, checked."""
    return StreamKey(an_id(gateway_id, "gateway_id"), stream_id)


def _at_least_one(value: int, name: str) -> int:
    if value < 1:
        raise invalid(name, value, "at least 1")
    return value


def _num_units(value: int, name: str) -> int:
    if value > MAX_DP_UNITS:
        raise invalid(name, value, f"at most {MAX_DP_UNITS}")
    return _at_least_one(value, name)


def _arrival(value: float, name: str) -> float:
    if finite(value, name) > _MOST_AHEAD:
        raise invalid(name, value, f"at most {_MOST_AHEAD:g} s after its message was sent")
    return value


def _deadline(value: float, name: str) -> float:
    if not value > -math.inf:
        raise invalid(name, value, "a time, or infinite for none")
    return value


def _expected_length(value: float, name: str) -> float:
    if finite(value, name) < 0.0:
        raise invalid(name, value, "at least 0 (unknown)")
    return value


def _all_finite(values: Sequence[float], name: str) -> Sequence[float]:
    return tuple(finite(value, name) for value in values)


def _names(values: Sequence[bytes], name: str) -> Sequence[bytes]:
    require_at_most(values, MAX_ENTRIES, name)
    for value in values:
        if len(value) != NAME_BYTES:
            raise invalid(f"the length of one of {name}", len(value), f"{NAME_BYTES} bytes")
    return values


def _few(values: Sequence[int], name: str) -> Sequence[int]:
    require_at_most(values, MAX_ENTRIES, name)
    return values


def _kv_bytes(value: int, name: str) -> int:
    if value > MAX_KV_BYTES:
        raise invalid(name, value, f"at most {MAX_KV_BYTES}")
    return value


def _kv_shape(least_tokens: int) -> Check:
    least = (1, 1, least_tokens, 1, 1)

    def check(shape: Sequence[int], name: str) -> Sequence[int]:
        if len(shape) != 5 or not all(
            low <= size < MAX_KV_DIMENSION for low, size in zip(least, shape, strict=True)
        ):
            raise invalid(name, list(shape), "5 positive sizes")
        return shape

    return check


def _no_less_than_nothing(value: float, name: str) -> float:
    if not value >= 0.0:
        raise invalid(name, value, "0 or more")
    return value


def _source(value: str, name: str) -> str:
    words = [source.value for source in Source]
    if value not in words:
        raise invalid(name, value, f"one of {', '.join(words)}")
    return value


BY_NAME: Mapping[str, Check] = {
    "unit": a_unit,
    "target_unit": a_unit,
    "message": text,
    "reason": text,
}
"""Checks by field name, for every message."""

MOST_ENTRIES: Mapping[tuple[type, str], int] = {
    (Dispatch, "batches"): MAX_DP_UNITS,
    (EndForward, "constants"): MAX_CONSTANTS,
    (EndForward, "loads"): MAX_DP_UNITS,
    (EndForward, "work"): MAX_WORKS,
    (Snapshot, "constants"): MAX_CONSTANTS,
    (Snapshot, "loads"): MAX_DP_UNITS,
    (Snapshot, "prefixes"): 2 * MAX_DP_UNITS,  # on the device, and in host memory
    (WorkerInfo, "adapters"): MAX_ADAPTERS,
    (WorkerPicture, "constants"): MAX_CONSTANTS,
}
"""Bounds of the messages in one field; ``MAX_ENTRIES`` elsewhere."""

BY_FIELD: Mapping[type, Mapping[str, Check]] = {
    Request: {
        "arrival_at": _arrival,
        "deadline_at": _deadline,
        "predicted_output_tokens": _expected_length,
        "cache_salt": an_id_or_none,
        "adapter": an_id_or_none,
        "session_id": unchecked,  # it checks itself
        "placed_on": _places,
    },
    Constraints: {"grammar": unchecked},  # it checks itself
    Standing: {"tenant": an_id_or_none},
    Placed: {"target_worker_id": an_id_or_none},
    Lost: dict.fromkeys(("process_id", "worker_id"), an_id_or_none),
    ControlHello: {"worker_id": an_id_or_none},
    Rejected: {"retry_after": lambda value, name: max(0.0, finite(value, name))},
    WorkerInfo: {
        **dict.fromkeys(("kv_layout", "process_id"), an_id_or_none),
        "num_units": _num_units,
        **dict.fromkeys(
            ("chunk_tokens", "block_size", "num_blocks", "max_model_len"), _at_least_one
        ),
    },
    KvHeader: {
        "layout": an_id_or_none,
        "block_size": _at_least_one,
        "num_bytes": _kv_bytes,
        "shape": _kv_shape(least_tokens=1),
    },
    KvPart: {"shape": _kv_shape(least_tokens=0)},
    EndForward: {"pass_time": unchecked, "dispatch_ids": _few},  # the time: for the policy to judge
    PassWork: {"seconds": unchecked},  # as well
    FinishedRequest: {"names": _names},
    CachedPrefixes: {"names": _names},
    WorkSample: {"stage": text},
    UsedConstant: {"value": _no_less_than_nothing, "source": _source},
    RateReport: {"gateway_id": unchecked, "model": text},
    WorkerPicture: {"ahead_tokens": _all_finite, "address": text},
    WindowPicture: {"flow_level": text},
    MovePicture: {"source_id": an_id_or_none},
}
"""Checks of single fields, where name and type are not enough."""

SELF_CHECKED = frozenset(
    {Constraints, SamplingParams, WantedReports, Tuned, MeasuredCosts, RateReport, PoolLoad}
)
"""Dataclasses that check their numbers themselves, or whose event does."""


def _every_unit_has_a_load(snapshot: Snapshot) -> None:
    units = [load.unit for load in snapshot.loads]
    if sorted(units) != list(range(snapshot.info.num_units)):
        raise invalid("loads", units, f"one for each of {snapshot.info.num_units} units")


def _begins_in_what_is_computed(part: KvPart) -> None:
    if not 0 < part.first_token <= part.num_computed_tokens:
        limit = f"from 1 to the {part.num_computed_tokens} computed tokens"
        raise invalid("first_token", part.first_token, limit)


def _every_name_has_a_number(prefixes: CachedPrefixes) -> None:
    if len(prefixes.numbers) != len(prefixes.names):
        limit = f"one for each of {len(prefixes.names)} names"
        raise invalid("the number of numbers", len(prefixes.numbers), limit)


OF_THE_WHOLE: Mapping[type, Callable[[Any], None]] = {
    Snapshot: _every_unit_has_a_load,
    KvPart: _begins_in_what_is_computed,
    CachedPrefixes: _every_name_has_a_number,
}
"""Checks across several fields."""
