"""The scheduler's leader of a live cluster: which process it is, and its end."""

from __future__ import annotations

import asyncio
import os
import signal

from services.local.supervisor import Supervisor
from services.runtime.store import Leader, Store

_PATIENCE, _POLL = 120.0, 0.01


async def kill_leader(supervisor: Supervisor, store: Store) -> Leader:
    """Kill the process that leads (SIGKILL), and return who led."""
    leader = await next_leader(store, above=0)
    service_id = leader.candidate_id.rpartition("-")[0]
    (process,) = (p for p in supervisor.processes if p.spec.service_id == service_id)
    assert process.pid is not None, "who leads runs"
    os.kill(process.pid, signal.SIGKILL)
    return leader


async def next_leader(store: Store, *, above: int) -> Leader:
    """Return the leader, once the fencing token has risen."""
    async with asyncio.timeout(_PATIENCE):
        while True:
            leader = await store.leader()
            if leader is not None and leader.fencing_token > above:
                return leader
            await asyncio.sleep(_POLL)
