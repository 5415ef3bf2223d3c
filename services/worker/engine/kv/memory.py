"""Free memory of a device."""

from __future__ import annotations

from pathlib import Path

import torch

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def available_bytes(device: torch.device, gpu_share: float = 1.0) -> int | None:
    """Return free memory; on a CPU the least of Linux's and the container's, None if unknown.

    Of a GPU it is at most what is left of this process's share: others may be about to take theirs.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        own = torch.cuda.memory_reserved(device)
        return max(0, min(int(free), int(gpu_share * total) - own))
    grants = [g for g in (_machine_bytes(), _container_bytes()) if g is not None]
    return min(grants, default=None)


def _machine_bytes() -> int | None:
    try:
        lines = MEMINFO.read_text().splitlines()
    except OSError:
        return None
    kib = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return next((int(value) * 1024 for value in kib), None)


def _container_bytes() -> int | None:
    """Return the rest of a cgroup v2 limit; the page cache counts as free."""
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        used = int((CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    return max(0, int(limit) - used + int(stat.get("inactive_file", 0)))
