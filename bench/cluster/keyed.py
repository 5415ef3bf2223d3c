"""A cluster of this machine for keys: tenants, floods and abuses."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from services.local.options import ClusterOptions, PolicyOptions, WorkerCounts
from services.local.store import free_port

_PORTS = 8
_DRAIN = 5.0


def keyed_cluster(
    lines: Iterable[str], folder: Path, *, model: str, preset: str, workers: WorkerCounts
) -> ClusterOptions:
    """Write a file of keys (``key_line``) into ``folder``; return the cluster that takes them.

    Without a line everybody may call.
    """
    text, file = "".join(f"{line}\n" for line in lines), folder / "keys"
    file.write_text(text, encoding="utf-8")
    file.chmod(0o600)
    return ClusterOptions(
        model=model,
        policies=PolicyOptions(preset),
        workers=workers,
        port=free_port(_PORTS),
        log_level="warning",
        drain_timeout=_DRAIN,
        api_key_file=str(file) if text else "",
        service_flags={"worker": ("--num-threads", "1")},
    )
