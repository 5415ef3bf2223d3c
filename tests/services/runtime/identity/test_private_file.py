"""Files that hold secrets: links, owners and modes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.errors import HeadwayError
from services.gateway.auth import KeyRing, key_line
from services.runtime.identity.private_file import read_private

LINE = key_line("ann", "secret")
READERS: list[Callable[[Path], object]] = [lambda path: read_private(path, "--x"), KeyRing.load]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(LINE)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("read", READERS)
def test_a_link_counts_as_what_it_leads_to(
    read: Callable[[Path], object], file: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(file)  # Kubernetes shows Secrets so
    read(link)
    file.chmod(0o644)
    with pytest.raises(HeadwayError, match="every user of th"):
        read(link)
    file.unlink()
    with pytest.raises((HeadwayError, FileNotFoundError)):
        read(link)


@pytest.mark.parametrize("read", READERS)
def test_another_users_file_is_refused(
    read: Callable[[Path], object], file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "link"
    link.symlink_to(file)
    if os.geteuid() == 0:
        os.chown(file, 65_534, 65_534)
        user = 0
    else:
        user = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: user)
    for path in (file, link):
        with pytest.raises(HeadwayError, match=rf"who may change it: chown {user} {path}"):
            read(path)
