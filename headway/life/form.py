"""The JSON form of a life (``docs/operations.md`` describes it).

Instants and lengths ending in ``_us`` are whole microseconds after the arrival.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.errors import Code, HeadwayError
from headway.life.moments import Moment, MomentKind
from headway.life.parts import LifePart, PartKind
from headway.life.record import Crowd, Instants, LifeRecord, TokenTally

_PLAIN = (
    *("request_id", "gateway_id", "model", "arrival_at", "status", "error", "tenant", "is_read"),
    *("session_id", "turn"),
)
_KINDS = {kind.name.lower(): kind for kind in MomentKind}


def packed(life: LifeRecord) -> dict[str, Any]:
    """Return a life as JSON values."""
    first_token, first_answer, end = life.instants
    return {
        **{name: getattr(life, name) for name in _PLAIN},
        "class": life.service_class,
        "tokens": life.tokens._asdict(),
        "crowd": life.crowd._asdict() | {"is_burst": life.crowd.is_burst},
        "first_token_us": first_token,
        "first_answer_us": first_answer,
        "end_us": end,
        "total_us": life.total,
        "parts": [
            {
                "kind": part.kind.value,
                "begin_us": part.begin,
                "end_us": part.end,
                "worker_id": part.worker_id,
            }
            for part in life.parts
        ],
        "moments": [
            {
                "kind": moment.kind.name.lower(),
                "at_us": moment.at,
                "worker_id": moment.worker_id,
                "amount": moment.amount,
                "cause": moment.cause,
            }
            for moment in life.moments
        ],
        "num_dropped": life.num_dropped,
    }


def timings(life: LifeRecord) -> dict[str, Any]:
    """Return the seconds of a life for its client: to its first tokens, in all, and by part."""
    spent: dict[str, float] = {}
    for part in life.parts:
        spent[part.kind.value] = spent.get(part.kind.value, 0.0) + part.seconds
    return {
        "request_id": life.request_id,
        "ttft": life.ttft,
        "total": life.total / 1e6,
        "parts": {kind: round(seconds, 6) for kind, seconds in spent.items()},
    }


def unpacked(fields: Mapping[str, Any]) -> LifeRecord:
    """Return the life in such values; INVALID_ARGUMENT for any others."""
    try:
        return LifeRecord(
            **{name: fields[name] for name in _PLAIN},
            service_class=fields["class"],
            tokens=TokenTally(**fields["tokens"]),
            crowd=Crowd(**{name: fields["crowd"][name] for name in Crowd._fields}),
            instants=Instants(
                fields["first_token_us"], fields["first_answer_us"], fields["end_us"]
            ),
            moments=tuple(
                Moment(
                    int(each["at_us"]),
                    _KINDS[each["kind"]],
                    each["worker_id"],
                    int(each["amount"]),
                    each["cause"],
                )
                for each in fields["moments"]
            ),
            parts=tuple(
                LifePart(
                    PartKind(each["kind"]),
                    int(each["begin_us"]),
                    int(each["end_us"]),
                    each["worker_id"],
                )
                for each in fields["parts"]
            ),
            num_dropped=int(fields["num_dropped"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        message = f"this is no life of a request ({error!r}): its writer has another version"
        raise HeadwayError(Code.INVALID_ARGUMENT, message) from error
