"""The part of kustomize that our manifests use; anything else in a kustomization is refused.

``resources``, ``namespace``, ``labels`` (of metadata alone), ``images`` (newTag) and strategic
merge ``patches`` with a ``target`` of kind and label selector. ``kubectl kustomize`` gives the
same objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]

_KNOWN = {"apiVersion", "kind", "namespace", "labels", "resources", "patches", "images"}
_CLUSTER_WIDE = {"Namespace"}
_MERGED_BY = {
    "containers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}


def render(folder: Path) -> list[Manifest]:
    """The objects of a kustomization."""
    said: Manifest = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert set(said) <= _KNOWN, set(said) - _KNOWN
    found: list[Manifest] = []
    for name in said["resources"]:
        path = (folder / name).resolve()
        found += render(path) if path.is_dir() else _load(path.read_text())
    for patch in said.get("patches", ()):
        found = _patched(found, patch, folder)
    for each in found:
        if "namespace" in said and each["kind"] not in _CLUSTER_WIDE:
            each["metadata"]["namespace"] = said["namespace"]
        for labels in said.get("labels", ()):
            assert set(labels) == {"pairs"}
            each["metadata"].setdefault("labels", {}).update(labels["pairs"])
        for image in said.get("images", ()):
            _tag(each, image["name"], image["newTag"])
    return found


def _load(text: str) -> list[Manifest]:
    return [each for each in yaml.safe_load_all(text) if each is not None]


def _patched(found: list[Manifest], patch: Mapping[str, Any], folder: Path) -> list[Manifest]:
    text = patch["patch"] if "patch" in patch else (folder / patch["path"]).read_text()
    (body,) = _load(text)
    chosen = [each for each in found if _is_target(each, patch.get("target"), body)]
    assert chosen, f"a patch of {folder.name} changes nothing"
    if body.get("$patch") == "delete":
        return [each for each in found if each not in chosen]
    change = {key: value for key, value in body.items() if key not in ("apiVersion", "kind")}
    change["metadata"] = {k: v for k, v in change["metadata"].items() if k != "name"}
    return [_merged(each, change) if each in chosen else each for each in found]


def _is_target(manifest: Manifest, target: Mapping[str, str] | None, body: Manifest) -> bool:
    if target is None:
        names = (manifest["metadata"]["name"], body["metadata"]["name"])
        return bool(manifest["kind"] == body["kind"] and names[0] == names[1])
    assert set(target) <= {"kind", "labelSelector"}, target
    if manifest["kind"] != target["kind"]:
        return False
    key, _, value = target.get("labelSelector", "").partition("=")
    return not key or manifest["metadata"].get("labels", {}).get(key) == value


def _merged(into: Any, change: Any, field: str = "") -> Any:
    """A strategic merge: maps by key, null deletes, some lists by a key of their items."""
    if isinstance(into, dict) and isinstance(change, dict):
        result = dict(into)
        for key, value in change.items():
            if value is None:
                result.pop(key, None)
            else:
                result[key] = _merged(result.get(key), value, key)
        return result
    if isinstance(into, list) and field in _MERGED_BY:
        by = _MERGED_BY[field]
        changes = {item[by]: item for item in change}
        kept = [_merged(item, changes.pop(item[by], {})) for item in into]
        return [*(_merged({}, item) for item in changes.values()), *kept]
    if isinstance(change, dict):
        return _merged({}, change)
    return deepcopy(change)


def _tag(manifest: Any, name: str, tag: str) -> None:
    if isinstance(manifest, dict):
        image = manifest.get("image")
        if isinstance(image, str) and image.partition(":")[0] == name:
            manifest["image"] = f"{name}:{tag}"
        for value in manifest.values():
            _tag(value, name, tag)
    elif isinstance(manifest, list):
        for value in manifest:
            _tag(value, name, tag)
