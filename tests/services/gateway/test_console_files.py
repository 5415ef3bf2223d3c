"""The console's files: small, unchanged where they are others', and as the policy wants them."""

from __future__ import annotations

import hashlib
import re

from services.gateway.console.pages import FOLDER, files, headers

VENDOR = FOLDER / "vendor"
MOST_BYTES = 60 * 1024


def test_the_whole_page_is_small() -> None:
    assert sum(len(file.packed) for file in files().values()) <= MOST_BYTES


def test_what_comes_from_npm_is_what_was_published() -> None:
    table = (VENDOR / "VENDOR.md").read_text()
    rows = re.findall(
        r"^\| `([^`]+)` \| \S+ \| [\d.]+ \| `[^`]+` \| \S+ \| `(\w{64})` \|$", table, re.M
    )
    there = {path.name for path in VENDOR.iterdir()} - {"VENDOR.md"}
    assert {name for name, _ in rows} == there
    for name, digest in rows:
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name


def test_every_file_that_a_file_names_is_served() -> None:
    for path, file in files().items():
        if "/vendor/" in path:
            continue
        named = re.findall(r"[\"'](/console/[\w./-]+)[\"']", file.body.decode())
        assert set(named) - {"/console/stream", "/console/what-if"} <= files().keys(), path


def test_nothing_is_loaded_from_elsewhere_and_nothing_is_evaluated() -> None:
    for path, file in files().items():
        text = file.body.decode()
        assert not re.search(r"\beval\(|new Function\(", text), path
        if "/vendor/" not in path:
            assert not re.search(r"(src|href|from|import)\s*[=(]?\s*[\"']https?:", text), path
    policy = dict(headers())["content-security-policy"]
    assert "default-src 'self'" in policy
