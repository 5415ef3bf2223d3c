"""Frames of the console: everything that it shows at one instant, as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from headway.core.autoscaler.events import PublishTargets
from headway.core.gateway.rows import FoundRows, RequestRow
from headway.picture import ClusterPicture, HeldPicture
from headway.policies.scaling.protocol import Fleet, PoolLoad
from headway.service_class import ServiceClass

Json = Any
_ROLES = ("prefill", "decode", "convertible", "unified")
_MOST_DECISIONS = 120


def rows_of(table: FoundRows) -> dict[str, Json]:
    """Return the rows of the request table, in order, and how many were looked at."""
    return {
        "order": [row.request_id for row in table.rows],
        "rows": {row.request_id: _row(row) for row in table.rows},
        "read": table.num_read,
        "open": table.num_open,
    }


def _row(row: RequestRow) -> dict[str, Json]:
    fields: dict[str, Json] = {
        "class": row.service_class,
        "tenant": row.tenant,
        "worker": row.worker_id,
        "phase": row.phase,
        "prompt": row.num_prompt_tokens,
        "output": row.num_output_tokens,
        "age": round(row.age, 2),
        "waited": round(row.waited, 3),
    }
    if row.attempt:
        fields["attempt"] = row.attempt
    if row.target_id:
        fields["target"] = row.target_id
    if row.expected_tokens > 0:
        fields["expected"] = round(row.expected_tokens)
    if isfinite(row.slack):
        fields["slack"] = round(row.slack, 3)
    if row.session_id:
        fields["session"] = row.session_id
    return fields


def cluster_of(picture: ClusterPicture) -> dict[str, Json]:
    """Return windows, moves and who waits for its own unit."""
    return {
        "windows": {window.model: _window(window) for window in picture.windows},
        "moves": {move.request_id: _move(move) for move in picture.moves},
        "held": {held.request_id: _held(held) for held in picture.held},
        "tracked": picture.num_tracked,
        "moving": picture.num_moving,
        "awaiting_decode": picture.num_awaiting_decode,
        "held_back": picture.num_held_back,
        "num_held": picture.num_held,
        "term": picture.fencing_token,
    }


def _window(window: object) -> dict[str, Json]:
    fields: dict[str, Json] = asdict(window)  # type: ignore[call-overload]
    del fields["model"]
    return fields


def _move(move: object) -> dict[str, Json]:
    fields: dict[str, Json] = asdict(move)  # type: ignore[call-overload]
    del fields["request_id"]
    return fields


def _held(held: HeldPicture) -> dict[str, Json]:
    return {
        "unit": f"{held.worker_id}/{held.unit}",
        "hit": held.num_hit_tokens,
        "longest_wait": round(held.longest_wait, 3),
    }


def promises_of(classes: Iterable[ServiceClass]) -> dict[str, Json]:
    """Return what each class is promised, seconds; a promise that is not made is left out."""
    names = ("ttft", "ttfat", "tpot", "deadline")
    return {
        each.name: {n: v for n in names if (v := getattr(each, n)) is not None} for each in classes
    }


def scaling_of(decisions: Sequence[PublishTargets]) -> list[Json]:
    """Return an autoscaler's decisions, oldest first."""
    return [_decision(each) for each in decisions[-_MOST_DECISIONS:]]


def _decision(decided: PublishTargets) -> dict[str, Json]:
    targets, rates = decided.targets, decided.rates
    fields: dict[str, Json] = {
        "at": decided.decided_at,
        "policy": decided.policy,
        "reason": targets.reason,
        "targets": {role: getattr(targets, f"num_{role}") for role in _ROLES},
    }
    if rates is not None:
        fields["rates"] = {
            name: getattr(rates, name)
            for name in ("requests_per_s", "input_tokens_per_s", "output_tokens_per_s")
        }
    if decided.fleet is not None:
        fields["pools"] = _pools(decided.fleet)
    return fields


def _pools(fleet: Fleet) -> dict[str, Json]:
    pools: Mapping[str, PoolLoad] = {role: getattr(fleet, role) for role in _ROLES}
    return {
        role: {
            "ready": pool.num_ready,
            "starting": pool.num_starting,
            "requests": pool.num_requests,
            "busy": pool.busy,
            "memory": pool.memory,
        }
        for role, pool in pools.items()
        if pool.num_ready or pool.num_starting or pool.num_requests
    }
