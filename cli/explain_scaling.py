"""``headway explain scaling``: the live autoscaler's last decisions, with their figures."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from cli.options import require_ranges
from headway.core.autoscaler.events import ROLES, PublishTargets
from headway.errors import Code, HeadwayError
from headway.life.reasons import several
from headway.policies.scaling.protocol import PoolLoad, StartUp
from services.local.run_file import SECRET_FILE, RunningCluster, running_cluster
from services.runtime import wire
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig, read_config
from services.runtime.identity.roles import ServiceRole
from services.runtime.identity.tls_files import tls_options
from services.runtime.store import Store

_TIMEOUT = 10.0
_INDENT = " " * 4


def run(args: argparse.Namespace) -> int:
    """Print them, oldest first; HeadwayError where no autoscaler answers."""
    require_ranges(args, last=(0, 100_000))
    decisions = asyncio.run(_ask(args))
    if not decisions:
        raise HeadwayError(Code.UNAVAILABLE, "nothing has been decided yet: ask again soon")
    for decided_at, paragraph in explained(decisions, every=args.every):
        when = datetime.fromtimestamp(decided_at).astimezone().isoformat(" ", "milliseconds")
        print(f"{when}  {paragraph}")
    return 0


async def _ask(args: argparse.Namespace) -> Sequence[PublishTargets]:
    config = _config(args)
    secret = args.cluster_secret_file or config.cluster_secret_file or _left_secret(args.log_dir)
    tls = tls_options(args.certs / ServiceRole.OPERATOR) if args.certs else {}
    config = config.model_copy(update={"cluster_secret_file": secret, **tls})
    address = args.autoscaler or await _find(config)
    async with open_channel(address, config, ServiceRole.AUTOSCALER) as channel:
        try:
            return await wire.scaling_decisions(channel, args.last, within=_TIMEOUT)
        except HeadwayError as error:
            message = f"no autoscaler answers at {address}: {error.message}"
            raise HeadwayError(Code.UNAVAILABLE, message) from error


def _config(args: argparse.Namespace) -> ServiceConfig:
    """Return where to ask: what was given, else the cluster of the run folder."""
    cluster = RunningCluster() if args.store or args.autoscaler else running_cluster(args.log_dir)
    said = {"store": args.store or cluster.store, "cluster": args.cluster or cluster.cluster}
    given = [text for name, value in said.items() if value for text in (f"--{name}", value)]
    return read_config(ServiceConfig, ["--service-id", "explain", *given])


def _left_secret(folder: Path) -> Path | None:
    """Return the secret that ``headway up`` has left there: older than what the user sets."""
    left = folder / SECRET_FILE
    return left if left.exists() else None


async def _find(config: ServiceConfig) -> str:
    """Return the autoscaler's address, by its membership."""
    store = await Store.connect(config.store, config.cluster, patience=_TIMEOUT)
    try:
        members = await store.members("autoscaler")
    finally:
        await store.close()
    if not members:
        message = (
            f"cluster {config.cluster!r} has no autoscaler in this store: give --autoscaler "
            "HOST:PORT (`headway up` prints it), or another --store"
        )
        raise HeadwayError(Code.NOT_FOUND, message)
    return min(member.address for member in members)


def explained(decisions: Sequence[PublishTargets], *, every: bool) -> Iterator[tuple[float, str]]:
    """Yield each decision's time and a paragraph: of ``every`` one, or of changes and the newest.

    A change is relative to the decision before; the first one counts as a change.
    """
    before: PublishTargets | None = None
    for number, decided in enumerate(decisions, start=1):
        changed = before is None or _numbers(before) != _numbers(decided)
        if every or changed or number == len(decisions):
            yield decided.decided_at, decision_text(decided, before)
        before = decided


def decision_text(decided: PublishTargets, before: PublishTargets | None = None) -> str:
    """Return a paragraph; ``before`` is the previous decision."""
    numbers = zip(ROLES, _numbers(before or decided), _numbers(decided), strict=True)
    counts = [
        f"{role} {now}" if now == then else f"{role} {then} → {now}"
        for role, then, now in numbers
        if now or then
    ]
    lines = [f"{decided.policy}: {', '.join(counts) or 'nothing'}", f"{decided.targets.reason}"]
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
        f"{pool.num_ready} ready, {pool.num_starting} starting, "
        f"{several(pool.num_requests, 'request')}, "
        f"{several(pool.backlog_tokens, 'token')} waiting, {pool.busy:.0%} busy, "
        f"{pool.memory:.0%} of KV memory"
    )


def _start_up(start_up: StartUp) -> str:
    measured = f"{start_up.seconds:.2f} s, the median of the last {start_up.num_measured}"
    if not start_up.num_standby:
        return f"{measured}; none stands by"
    return f"{measured} that stood by; {start_up.num_standby} now"


def _numbers(decided: PublishTargets) -> tuple[int, ...]:
    return tuple(getattr(decided.targets, f"num_{role}") for role in ROLES)
