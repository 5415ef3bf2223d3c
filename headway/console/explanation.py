"""The explanation of a call: for each output its life, the reasons, and the decisions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from headway.errors import Code, HeadwayError
from headway.life.form import packed
from headway.life.reasons import reasons_of
from headway.life.record import CallLives, LifeRecord
from headway.request import call_of, place_of

Json = dict[str, Any]


def explanation(asked: str, call: CallLives, lines: Iterable[str]) -> Json:
    """Return the answer to ``asked``: the first output, the others, and how many calls are older.

    ``lines``: the decisions about all that the id means, as JSON. Without a life they tell which
    call is the newest.
    """
    decided = _by_output(lines)
    lives: dict[str, LifeRecord | None] = {life.request_id: life for life in call.outputs}
    num_older = call.num_older
    if not lives:
        calls = list(dict.fromkeys(call_of(request_id) for request_id in decided))
        newest = (name for name in decided if call_of(name) == calls[-1])
        lives, num_older = dict.fromkeys(sorted(newest, key=place_of)), max(len(calls) - 1, 0)
    outputs = [_output(name, life, decided.get(name, ())) for name, life in lives.items()]
    first = outputs[0] if outputs else _output(asked, None, ())
    return {**first, "request_id": asked, "others": outputs[1:], "num_older": num_older}


def _output(request_id: str, life: LifeRecord | None, decisions: Sequence[Json]) -> Json:
    return {
        "request_id": request_id,
        "decisions": list(decisions),
        "life": None if life is None else packed(life),
        "reasons": [] if life is None else [each.packed() for each in reasons_of(life)],
    }


def _by_output(lines: Iterable[str]) -> Mapping[str, list[Json]]:
    """Return the decisions on each output, the output that was decided on last at the end."""
    decisions: dict[str, list[Json]] = {}
    try:
        for line in lines:
            for name, decision in _split(json.loads(line)):
                decisions[name] = [*decisions.pop(name, ()), decision]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        message = f"the leader's decisions cannot be read ({error!r}): it has another version"
        raise HeadwayError(Code.UNAVAILABLE, message) from error
    return decisions


def _split(decision: Json) -> Iterator[tuple[str, Json]]:
    """Yield a decision for each output that it placed; the others count as ``beside`` it."""
    chosen = decision["chosen"]
    for name in dict.fromkeys(str(each[0]) for each in chosen):
        own = [each for each in chosen if each[0] == name]
        beside = int(decision.get("beside", 0)) + len(chosen) - len(own)
        yield name, {**decision, "chosen": own, **({"beside": beside} if beside else {})}
