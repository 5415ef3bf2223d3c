"""Refuses a second cluster of one name in one store."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from headway.errors import Code, HeadwayError
from services.local.process_spec import ProcessSpec
from services.runtime.config import ServiceConfig
from services.runtime.store import MEMBER_TTL, Member, Store

_LATE, _INTERVAL = 0.5, 0.1  # seconds


async def refuse_taken_ids(specs: Sequence[ProcessSpec], config: ServiceConfig) -> None:
    """Raise FAILED_PRECONDITION if the store has living members with these ids.

    Two clusters would take each other's places in it. The lease of a process that was killed
    ends by itself: members are looked at again until then.
    """
    ours = {(spec.service, spec.service_id) for spec in specs if not spec.command}
    store = await Store.connect(config.store, config.cluster)
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + MEMBER_TTL + _LATE
    try:
        while True:
            asked_at = loop.time()
            taken = await _living(store, ours)
            if taken == []:
                return
            if asked_at > give_up_at:
                break
            await asyncio.sleep(_INTERVAL)
    finally:
        await store.close()
    if taken:  # without a store no service starts, and each says why
        raise HeadwayError(
            Code.FAILED_PRECONDITION,
            f"the cluster {config.cluster!r} has a {taken[0].service} {taken[0].member_id!r} at "
            f"{taken[0].address} already: give another --cluster, or add single services with "
            "`headway service`",
        )


async def _living(store: Store, ours: Collection[tuple[str, str]]) -> list[Member] | None:
    """Return the members with these services and ids; None while the store does not answer."""
    try:
        listed = [await store.members(service) for service in sorted({s for s, _ in ours})]
    except HeadwayError:
        return None
    return [m for members in listed for m in members if (m.service, m.member_id) in ours]
