"""Decisions of the scheduler as JSON lines, for files and for ``headway explain``."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TextIO

from headway.cluster import UnitId
from headway.core.scheduler.events import Considered, Decision
from headway.policies.dispatch.protocol import OwnUnit
from headway.request import is_named

MOST_LINES = 512
"""Four decisions for each of 128 outputs."""


def write_decisions(decisions: Iterable[Decision], file: TextIO) -> None:
    """Write one JSON object a line."""
    for decision in decisions:
        file.write(decision_line(decision) + "\n")


def lines_about(request_id: str, decisions: Sequence[Decision]) -> list[str]:
    """Return the newest decisions that placed this request, in order; of others the number alone.

    A request's owner may read them, and nothing about requests of other clients. A client's own id
    may mean thousands of requests.
    """
    lines: deque[str] = deque()
    for decision in reversed(decisions):
        if len(lines) == MOST_LINES:
            break
        own = tuple(c for c in decision.chosen if is_named(c.request_id, request_id))
        if own:
            beside = len(decision.chosen) - len(own)
            lines.appendleft(decision_line(replace(decision, chosen=own), beside))
    return list(lines)


def decision_line(decision: Decision, beside: int = 0) -> str:
    """Return the decision as JSON, without a line end; ``beside``: others that it placed."""
    packed: dict[str, Any] = {
        "question": decision.question,
        "at": decision.decided_at,
        "rule": decision.rule,
        "left": decision.num_left,
        "considered": [_packed(each) for each in decision.considered],
        "chosen": [
            [c.request_id, _unit(c.unit), list(c.score), c.waited, *_own(c.own)]
            for c in decision.chosen
        ],
    }
    if beside:
        packed["beside"] = beside
    if decision.constants:
        packed["constants"] = [[c.name, c.value, c.source.value] for c in decision.constants]
    return json.dumps(packed, separators=(",", ":"))


def _unit(unit: UnitId) -> str:
    return f"{unit.worker_id}/{unit.unit}"


def _own(own: OwnUnit | None) -> list[dict[str, Any]]:
    """Return why a unit is the request's own, if it is."""
    if own is None:
        return []
    reason: dict[str, Any] = {
        "hit_tokens": own.num_hit_tokens,
        "owed_tokens": own.num_owed_tokens,
        "cost": own.cost,
        "wait": own.wait,
        "longest_wait": own.longest_wait,
    }
    if own.num_host_tokens:
        reason["host_tokens"] = own.num_host_tokens
    if own.runner_up is not None:
        reason |= {"runner_up": _unit(own.runner_up), "runner_up_cost": own.runner_up_cost}
    return [reason]


def _packed(considered: Considered) -> list[Any]:
    """Return a unit; K_pred and score follow where there are any."""
    packed = [_unit(considered.unit), list(considered.load), considered.num_free_blocks]
    if considered.predicted_tokens is None and not considered.score:
        return packed
    return [*packed, considered.predicted_tokens, list(considered.score)]
