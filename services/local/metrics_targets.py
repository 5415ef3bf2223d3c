"""The file in which Prometheus finds this machine's processes; it reads it again on a change.

The format is that of its file-based service discovery (``file_sd_configs``).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from services.local.process_spec import ProcessSpec
from services.local.supervisor import Supervisor

FILE_NAME = "prometheus.json"
_INTERVAL = 0.5


def targets(specs: Iterable[ProcessSpec]) -> list[dict[str, object]]:
    """Return every process that shows metrics: its address, name and service."""
    groups: list[dict[str, object]] = []
    for spec in specs:
        if "--metrics-listen" not in spec.flags:
            continue
        address = spec.flags[spec.flags.index("--metrics-listen") + 1]
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
