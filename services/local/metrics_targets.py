"""Where Prometheus finds the processes of this machine: a file that it reads again when it changes.

The format is that of its file-based service discovery (``file_sd_configs``).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path

from services.local.supervised import ProcessSpec
from services.local.supervisor import Supervisor

FILE_NAME = "prometheus.json"
_INTERVAL = 0.5


def targets(specs: Iterable[ProcessSpec]) -> list[dict[str, object]]:
    """Every process that shows metrics: its address, and who and what it is."""
    found: list[dict[str, object]] = []
    for spec in specs:
        if "--metrics-listen" not in spec.flags:
            continue
        address = spec.flags[spec.flags.index("--metrics-listen") + 1]
        labels = {"service": spec.service, "service_id": spec.service_id}
        if spec.role:
            labels["role"] = spec.role
        found.append({"targets": [address], "labels": labels})
    return found


def write_targets(path: Path, specs: Iterable[ProcessSpec]) -> None:
    """All of them; whoever reads it meanwhile reads the old file or the new one."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(targets(specs), indent=1) + "\n", encoding="utf-8")
    new.replace(path)


async def keep_targets(path: Path, supervisor: Supervisor) -> None:
    """Until cancelled: the file follows who comes, goes, and takes another role."""
    known: list[ProcessSpec] | None = None
    while True:
        specs = [process.spec for process in supervisor.processes]
        if specs != known:
            write_targets(path, specs)
            known = specs
        await asyncio.sleep(_INTERVAL)
