"""The objects of deploy/picker/kubernetes.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).resolve().parents[2] / "deploy" / "picker" / "kubernetes.yaml"
MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all(FILE.read_text("utf-8")))


def one(kind: str) -> dict[str, Any]:
    """Return the only object of a kind."""
    (found,) = (manifest for manifest in MANIFESTS if manifest["kind"] == kind)
    return found
