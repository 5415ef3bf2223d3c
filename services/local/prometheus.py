"""``headway up --metrics-port``: a port for every process, and the file that names them all.

The file's format is that of Prometheus' file-based service discovery (``file_sd_configs``), which
reads it again on a change.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headway.errors import Code, HeadwayError
from services.local.store import is_free

if TYPE_CHECKING:
    from services.local.process_spec import ProcessSpec
    from services.local.supervisor import Supervisor

FLAG = "--metrics-listen"
FILE_NAME = "prometheus.json"
_INTERVAL = 0.5
_HOST = "127.0.0.1"
_MOST_PORTS = 1024  # that are looked at from the first one on


def in_order(specs: list[ProcessSpec], port: int) -> list[ProcessSpec]:
    """Return a port for each; the gateway, which shows them to clients too, first. 0: none."""
    if not port:
        return specs
    return [_listening(spec, port + place) for place, spec in enumerate(specs)]


def beside(spec: ProcessSpec, others: Iterable[ProcessSpec], port: int) -> ProcessSpec:
    """Return the first port from ``port`` on that is free and that none of the others has.

    One that is told what to be (it stood by) goes on listening where it does. UNAVAILABLE where
    no port is left.
    """
    if not port:
        return spec
    addresses = {other.service_id: address_of(other) for other in others}
    if addresses.get(spec.service_id):
        return replace(spec, flags=(*spec.flags, FLAG, addresses[spec.service_id]))
    taken = set(addresses.values())
    for number in range(port, min(port + _MOST_PORTS, 65_536)):
        if f"{_HOST}:{number}" not in taken and is_free(number):
            return _listening(spec, number)
    message = f"no port is free for the metrics of {spec.service_id}: choose another --metrics-port"
    raise HeadwayError(Code.UNAVAILABLE, message)


def address_of(spec: ProcessSpec) -> str:
    """Return the address of a process's metrics, "" where it shows none."""
    flags = spec.flags
    return flags[flags.index(FLAG) + 1] if FLAG in flags else ""


def _listening(spec: ProcessSpec, port: int) -> ProcessSpec:
    return replace(spec, flags=(*spec.flags, FLAG, f"{_HOST}:{port}"))


# --- the file -------------------------------------------------------------------------


def targets(specs: Iterable[ProcessSpec]) -> list[dict[str, object]]:
    """Return every process that shows metrics: its address, name and service."""
    groups: list[dict[str, object]] = []
    for spec in specs:
        if not (address := address_of(spec)):
            continue
        labels = {"service": spec.service, "service_id": spec.service_id}
        if spec.role:
            labels["role"] = spec.role
        groups.append({"targets": [address], "labels": labels})
    return groups


def write_targets(path: Path, specs: Iterable[ProcessSpec]) -> None:
    """Write all of them; a reader meanwhile sees the old file or the new one."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(targets(specs), indent=1) + "\n", encoding="utf-8")
    new.replace(path)


async def keep_targets(path: Path, supervisor: Supervisor) -> None:
    """Keep the file up to date with processes and their roles, until cancelled."""
    known: list[ProcessSpec] | None = None
    while True:
        specs = [process.spec for process in supervisor.processes]
        if specs != known:
            with suppress(OSError):  # the disk is full: try again
                write_targets(path, specs)
                known = specs
        await asyncio.sleep(_INTERVAL)
