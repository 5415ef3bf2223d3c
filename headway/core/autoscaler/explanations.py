"""Scaling decisions, told to people: what changed, why, and the figures it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headway.core.autoscaler.events import ROLES, PublishTargets
from headway.policies.scaling.protocol import PoolLoad, StartUp

_INDENT = " " * 4


def told(decisions: Sequence[PublishTargets], *, every: bool) -> Iterator[tuple[float, str]]:
    """When, and a paragraph: of ``every`` decision, or of changes and the newest alone.

    A change is against the decision before; the first one has none.
    """
    before: PublishTargets | None = None
    for number, decided in enumerate(decisions, start=1):
        changed = before is None or _numbers(before) != _numbers(decided)
        if every or changed or number == len(decisions):
            yield decided.decided_at, text(decided, before)
        before = decided


def text(decided: PublishTargets, before: PublishTargets | None = None) -> str:
    """A paragraph; ``before`` is the decision before it."""
    numbers = zip(ROLES, _numbers(before or decided), _numbers(decided), strict=True)
    shown = [
        f"{role} {now}" if now == then else f"{role} {then} → {now}"
        for role, then, now in numbers
        if now or then
    ]
    lines = [f"{decided.policy}: {', '.join(shown) or 'nothing'}", f"{decided.targets.reason}"]
    rates = decided.rates
    lines.append(
        "rates: none was fresh"
        if rates is None
        else f"rates: {rates.requests_per_s:.2f} requests/s, {rates.input_tokens_per_s:.0f} input "
        f"and {rates.output_tokens_per_s:.0f} output tokens/s"
    )
    if decided.fleet is None:
        lines.append("fleet: no report was fresh")
    else:
        pools = [(role, getattr(decided.fleet, role)) for role in ROLES]
        lines += [f"{role}: {_load(pool)}" for role, pool in pools if pool != PoolLoad(0)]
        if decided.fleet.start_up is not None:
            lines.append(f"start-up: {_start_up(decided.fleet.start_up)}")
    return f"\n{_INDENT}".join(lines)


def _load(pool: PoolLoad) -> str:
    return (
        f"{pool.num_ready} ready, {pool.num_starting} starting, {pool.num_requests} requests, "
        f"{pool.backlog_tokens} tokens waiting, {pool.busy:.0%} busy, "
        f"{pool.memory:.0%} of KV memory"
    )


def _start_up(start_up: StartUp) -> str:
    measured = f"{start_up.seconds:.2f} s, the median of the last {start_up.num_measured}"
    if not start_up.num_standby:
        return f"{measured}; none stands by"
    return f"{measured} that stood by; {start_up.num_standby} now"


def _numbers(decided: PublishTargets) -> tuple[int, ...]:
    return tuple(getattr(decided.targets, f"num_{role}") for role in ROLES)
