"""The Kubernetes manifests as kustomize renders them, and what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fakes.kustomize import render

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
RENDERED = {name: render(FOLDER / name) for name in ("base", "direct", "gpu")}


def of_kind(name: str, kind: str) -> dict[str, dict[str, Any]]:
    """Objects of a kind, by name."""
    return {o["metadata"]["name"]: o for o in RENDERED[name] if o["kind"] == kind}


def container(deployment: dict[str, Any]) -> dict[str, Any]:
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(found)


def settings(name: str) -> dict[str, str]:
    return dict(of_kind(name, "ConfigMap")["headway"]["data"])


def allowed_from(name: str, labels: dict[str, str]) -> dict[int, set[str]]:
    """Return who may reach the ports of pods with these labels: services, or anybody."""
    found: dict[int, set[str]] = {}
    for policy in of_kind(name, "NetworkPolicy").values():
        selected = policy["spec"]["podSelector"].get("matchLabels", {})
        if not selected.items() <= labels.items():
            continue
        for rule in policy["spec"].get("ingress", ()):
            peers = [*map(_peer, rule.get("from", ()))] or ["anybody"]
            for port in rule["ports"]:
                found.setdefault(port["port"], set()).update(peers)
    return found


def _peer(peer: dict[str, Any]) -> str:
    ((_, selector),) = peer.items()
    ((_, value),) = selector["matchLabels"].items()
    return str(value)
