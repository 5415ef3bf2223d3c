"""Certificates for mTLS, made when a test runs."""

from __future__ import annotations

from pathlib import Path

from services.local.certificates import issue, make_authorities
from services.runtime.identity.roles import ServiceRole


def make_certificates(
    folder: Path,
    role: ServiceRole = ServiceRole.WORKER,
    *,
    cluster: str = "default",
    name: str = "test",
) -> dict[str, Path]:
    """Return the options of a service with a certificate; one authority per folder."""
    if not (folder / "authority").exists():
        make_authorities(folder, days=2)
    return {**issue(folder, role, name, cluster=cluster, days=2)}
