"""A worker of this machine that serves another role from now on, and after a restart, too."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from headway.cluster import Role
from headway.errors import HeadwayError
from services.local.supervised import SupervisedProcess
from services.runtime import wire
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig
from services.runtime.identity.roles import ServiceRole

_PAUSE = 1.0


async def set_role(process: SupervisedProcess, role: str, config: ServiceConfig) -> bool:
    """Ask for a role; return whether it was taken. One that does not say so keeps its own."""
    if not await _takes(process, role, config):
        return False
    flags = (*process.spec.flags, "--role", role)
    process.spec = replace(process.spec, role=role, flags=flags)
    return True


async def keep_role(process: SupervisedProcess, config: ServiceConfig) -> None:
    """Tell a worker its role until it says that it has it.

    It may have taken another one, and only its answer was lost. Its next process begins with its
    own in any case.
    """
    pid, role = process.pid, ""
    while role != process.spec.role:
        await asyncio.sleep(_PAUSE)
        if pid is None or process.pid != pid:
            return
        own = process.spec.role
        if await _takes(process, own, config):
            role = own


async def _takes(process: SupervisedProcess, role: str, config: ServiceConfig) -> bool:
    if not process.address:  # it has not been found yet
        return False
    try:
        async with open_channel(process.address, config, ServiceRole.WORKER) as channel:
            await wire.set_role(channel, Role(role))
    except HeadwayError:  # of the files of TLS, too, which may just be replaced
        return False
    return True
