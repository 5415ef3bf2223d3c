"""A worker of this machine that serves another role from now on, and after a restart, too."""

from __future__ import annotations

from dataclasses import replace

from headway.cluster import Role
from headway.errors import HeadwayError
from services.local.supervised import SupervisedProcess
from services.runtime import wire
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig
from services.runtime.identity.roles import ServiceRole


async def set_role(process: SupervisedProcess, role: str, config: ServiceConfig) -> bool:
    """Ask for a role; return whether it was taken. One that cannot be reached keeps its own."""
    async with open_channel(process.address, config, ServiceRole.WORKER) as channel:
        try:
            await wire.set_role(channel, Role(role))
        except HeadwayError:
            return False
    flags = (*process.spec.flags, "--role", role)
    process.spec = replace(process.spec, role=role, flags=flags)
    return True
