"""``headway explain scaling``: the live autoscaler's last decisions, with their figures."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.core.autoscaler.events import PublishTargets
    from services.runtime.config import ServiceConfig

_TIMEOUT = 10.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register them."""
    group = parser.add_argument_group("scaling")
    add = group.add_argument
    add("--autoscaler", default="", metavar="HOST:PORT", help="default: found in the store")
    add("--store", default="", help="redis:// URL of the cluster's store; default: $HEADWAY_STORE")
    add("--cluster", default="default", help="name of the cluster in the store")
    add("--last", type=int, default=0, metavar="N", help="decisions looked at (default: all kept)")
    add("--all", dest="every", action="store_true", help="those that changed nothing, too")


def run(args: argparse.Namespace) -> int:
    """Print them, oldest first; HeadwayError where no autoscaler answers."""
    import asyncio
    from datetime import datetime

    from headway.core.autoscaler.explanations import told
    from headway.errors import Code, HeadwayError, require_between

    require_between("--last", args.last, 0, 100_000)
    decisions = asyncio.run(_ask(args))
    if not decisions:
        raise HeadwayError(Code.UNAVAILABLE, "nothing has been decided yet: ask again soon")
    for decided_at, paragraph in told(decisions, every=args.every):
        when = datetime.fromtimestamp(decided_at).astimezone().isoformat(" ", "milliseconds")
        print(f"{when}  {paragraph}")
    return 0


async def _ask(args: argparse.Namespace) -> Sequence[PublishTargets]:
    import grpc

    from headway.errors import Code, HeadwayError
    from protos import autoscaler_pb2, autoscaler_pb2_grpc
    from services.runtime import wire
    from services.runtime.channel import open_channel
    from services.runtime.config import ServiceConfig

    store = {"store": args.store} if args.store else {}
    config = ServiceConfig(service_id="explain", cluster=args.cluster, **store)
    address = args.autoscaler or await _find(config)
    asked = autoscaler_pb2.GetDecisionsRequest(num_decisions=args.last)
    async with open_channel(address, config) as channel:
        stub = autoscaler_pb2_grpc.AutoscalerStub(channel)
        try:
            found = await stub.GetDecisions(asked, timeout=_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            message = f"no autoscaler answers at {address}: {error.details()}"
            raise HeadwayError(Code.UNAVAILABLE, message) from error
    return [wire.unpack_decision(each) for each in found.decisions]


async def _find(config: ServiceConfig) -> str:
    """The autoscaler's address, by its membership."""
    from headway.errors import Code, HeadwayError
    from services.runtime.store import Store

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
