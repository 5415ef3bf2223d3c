"""The certificates of a campaign's cluster: issued, replaced while it runs, or a stranger's."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from services.local.certificates import issue, make_authorities
from services.runtime.identity.roles import ServiceRole


class Certificates:
    """Two authorities, the cluster's own and a stranger's, and a certificate for each process."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._folder = tempfile.TemporaryDirectory(prefix="headway-chaos-")
        self._own, self._stranger = (Path(self._folder.name) / n for n in ("own", "stranger"))
        for authority in (self._own, self._stranger):
            make_authorities(authority)

    def issue(self, role: ServiceRole, name: str) -> Mapping[str, Path]:
        """Issue a process's first certificate; return its options."""
        return issue(self._own, role, name, cluster=self._cluster)

    def replace(self, role: ServiceRole, name: str, *, by_stranger: bool = False) -> None:
        """Give a process another certificate and key; whom it trusts stays."""
        fresh = Path(self._folder.name) / "fresh" / name
        authority = self._stranger if by_stranger else self._own
        issue(authority, role, name, cluster=self._cluster, place=fresh)
        for file in ("cert.pem", "key.pem"):
            (fresh / file).replace(self._own / name / file)
        shutil.rmtree(fresh)

    @contextmanager
    def in_environment(self) -> Iterator[None]:
        """Let this process be the supervisor: what it configures meanwhile has a certificate."""
        options = self.issue(ServiceRole.SUPERVISOR, "supervisor")
        named = {f"HEADWAY_{option.upper()}": str(path) for option, path in options.items()}
        os.environ.update(named)
        try:
            yield
        finally:
            for variable in named:
                del os.environ[variable]

    def close(self) -> None:
        """Delete all of them."""
        self._folder.cleanup()
