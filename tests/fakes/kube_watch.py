"""An API server of Kubernetes in this process: it lists and watches, and forgets old versions.

Leases and EndpointSlices are read and written; a write of an older version is a conflict. What the
Role of deploy/picker does not allow is refused. Deployments have a scale, and no more.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from tests.fakes.picker_manifests import one

TOKEN = "the-service-account"
PODS = "/api/v1/namespaces/serving/pods"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/serving/inferencepools"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/serving/leases"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/serving/endpointslices"
DEPLOYMENTS = "/apis/apps/v1/namespaces/serving/deployments/"


class KubeApi:
    """Objects by path and name; ``num_lists``: how often each path was listed.

    ``replicas``: of deployments; ``patches``: of their scales, with the kind of each patch.
    """

    def __init__(self) -> None:
        self.url = ""
        self.replicas: dict[str, int] = {}
        self.patches: list[tuple[str, str, Any]] = []
        self.num_lists = dict.fromkeys((PODS, POOLS), 0)
        self.refuses = False
        self._version = 0
        self._oldest = 0
        self._objects: dict[str, dict[str, Any]] = {PODS: {}, POOLS: {}, LEASES: {}, SLICES: {}}
        self._history: list[tuple[int, str, str, Any, Any]] = []
        self._changed = asyncio.Condition()
        self._epoch = 0

    async def put(self, path: str, found: Mapping[str, Any]) -> None:
        """Create or replace an object."""
        name = found["metadata"]["name"]
        before = self._objects[path].get(name)
        await self._note(path, "MODIFIED" if before else "ADDED", before, deepcopy(dict(found)))

    async def delete(self, path: str, name: str) -> None:
        """Remove an object at last."""
        before = self._objects[path].pop(name)
        await self._note(path, "DELETED", before, deepcopy(before))

    async def _note(self, path: str, change: str, before: Any, found: Any) -> None:
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)
        if change != "DELETED":
            self._objects[path][found["metadata"]["name"]] = found
        async with self._changed:
            self._history.append((self._version, path, change, before, found))
            self._changed.notify_all()

    async def forget_history(self) -> None:
        """End all watches, and know no older version: as after a compaction of etcd."""
        self._version += 1
        self._oldest = self._version
        await self.end_watches()

    async def end_watches(self) -> None:
        """End all watches, as their time-outs do."""
        async with self._changed:
            self._epoch += 1
            self._changed.notify_all()

    # --- HTTP -------------------------------------------------------------------------

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _status(401, "Unauthorized")
        if self.refuses:
            return _status(503, "ServiceUnavailable")
        path, _, name = request.path.rpartition("/")
        if path.startswith(DEPLOYMENTS) and name == "scale":
            return await self._scale(request, path.removeprefix(DEPLOYMENTS))
        if not _is_allowed(request):
            return _status(403, "Forbidden")
        if path in (LEASES, SLICES) or request.path in (LEASES, SLICES):
            return await self._object(request, name)
        if _is_watch(request):
            return await self._watch(request)
        self.num_lists[request.path] += 1
        items = [o for o in self._objects[request.path].values() if _selects(request.query, o)]
        metadata = {"resourceVersion": str(self._version)}
        return web.json_response({"kind": "List", "metadata": metadata, "items": items})

    def find(self, path: str, name: str) -> Any:
        """Return an object, None for none."""
        return self._objects[path].get(name)

    async def _object(self, request: web.Request, name: str) -> web.Response:
        body: Any = await request.json() if request.can_read_body else None
        if request.method == "POST":
            if self.find(request.path, body["metadata"]["name"]) is not None:
                return _status(409, "AlreadyExists")
            await self.put(request.path, body)
            return web.json_response(body, status=201)
        path = request.path.rpartition("/")[0]
        found = self.find(path, name)
        if found is None:
            return _status(404, "NotFound")
        if request.method == "PUT":
            version = body["metadata"]["resourceVersion"]
            if version != found["metadata"]["resourceVersion"]:
                return _status(409, "Conflict")
            await self.put(path, body)
        elif request.method == "PATCH":
            assert request.content_type == "application/merge-patch+json"
            await self.put(path, {**found, **body})
        return web.json_response(self.find(path, name))

    async def _scale(self, request: web.Request, name: str) -> web.Response:
        if name not in self.replicas:
            return _status(404, "NotFound")
        if request.method == "PATCH":
            kinds = ("merge-patch", "strategic-merge-patch")
            if request.content_type not in [f"application/{kind}+json" for kind in kinds]:
                return _status(415, "UnsupportedMediaType")
            patch = await request.json()
            self.patches.append((name, request.content_type, patch))
            self.replicas[name] = patch["spec"]["replicas"]
        count = self.replicas[name]
        scale = {
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": {"name": name, "namespace": "serving", "resourceVersion": "1"},
            "spec": {"replicas": count} if count else {},  # the real one leaves a 0 out, too
            "status": {"replicas": count, "selector": f"app={name}"},
        }
        return web.json_response(scale)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"Content-Type": "application/json"})
        await reply.prepare(request)
        version, epoch = int(request.query["resourceVersion"]), self._epoch
        if version < self._oldest:
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
            await _write(reply, "ERROR", status)
            return reply
        while epoch == self._epoch:
            for at, path, change, before, found in list(self._history):
                if path == request.path and at > version:
                    kind = _change(request.query, change, before, found)
                    await _write(reply, kind, found)
                version = max(version, at)
            bookmark = {"kind": "Pod", "metadata": {"resourceVersion": str(version)}}
            await _write(reply, "BOOKMARK", bookmark)
            async with self._changed:
                while self._epoch == epoch and self._version <= version:
                    await self._changed.wait()
        return reply


def _is_watch(request: web.Request) -> bool:
    return request.query.get("watch") in ("true", "True")


def _is_allowed(request: web.Request) -> bool:
    """Return whether the Role has the verb for the resource, and for the object's name."""
    group, _, rest = request.path.partition("/namespaces/serving/")
    resource, _, name = rest.partition("/")
    group = group.split("/")[2] if group.startswith("/apis/") else ""
    verbs = {"POST": "create", "PUT": "update", "PATCH": "patch"}
    reads = "get" if name else "watch" if _is_watch(request) else "list"
    verb = verbs.get(request.method, reads)
    return any(
        group in rule["apiGroups"]
        and resource in rule["resources"]
        and verb in rule["verbs"]
        and ("resourceNames" not in rule or name in rule["resourceNames"])
        for rule in one("Role")["rules"]
    )


def _change(query: Mapping[str, str], change: str, before: Any, found: Any) -> str:
    """Return what a watch with this selector hears; "" for nothing."""
    had = before is not None and _selects(query, before)
    has = change != "DELETED" and _selects(query, found)
    if had:
        return "MODIFIED" if has else "DELETED"
    return "ADDED" if has else ""


def _selects(query: Mapping[str, str], found: Mapping[str, Any]) -> bool:
    metadata = found["metadata"]
    labels = metadata.get("labels", {})
    wanted = [pair.split("=") for pair in query.get("labelSelector", "").split(",") if pair]
    if any(labels.get(key) != value for key, value in wanted):
        return False
    field = query.get("fieldSelector", "")
    return not field or field == f"metadata.name={metadata['name']}"


async def _write(reply: web.StreamResponse, change: str, found: Any) -> None:
    if change:
        await reply.write(json.dumps({"type": change, "object": found}).encode() + b"\n")


def _status(code: int, reason: str) -> web.Response:
    status = {"kind": "Status", "code": code, "reason": reason, "message": reason}
    return web.json_response(status, status=code)


@asynccontextmanager
async def kube_api(certificates: Mapping[str, Path] | None = None) -> AsyncIterator[KubeApi]:
    """Serve one on a port of this machine, with TLS where there are certificates."""
    api, context = KubeApi(), None
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates["tls_cert"], certificates["tls_key"])
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", api.serve)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    api.url = f"{'https' if context else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield api
    finally:
        await api.end_watches()
        await runner.cleanup()


@asynccontextmanager
async def serving_api(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeApi]:
    """Serve one that this process's kubeconfig names."""
    async with kube_api() as api:
        look_in(write_kubeconfig(folder, api.url), monkeypatch)
        yield api


def look_in(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process, which is in no cluster, look for its kubeconfig there."""
    place = "kubernetes_asyncio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
    monkeypatch.setattr(place, str(config))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


def write_kubeconfig(folder: Path, url: str) -> Path:
    """Write one for a server, and return its path."""
    context = {"cluster": "c", "user": "u", "namespace": "serving"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
        "contexts": [{"name": "x", "context": context}],
        "current-context": "x",
    }
    (folder / "config").write_text(yaml.safe_dump(config))
    return folder / "config"


def pool(port: int = 8000, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """An InferencePool."""
    spec = {
        "selector": {"matchLabels": dict(labels or {"app": "vllm"})},
        "targetPorts": [{"number": port}],
    }
    return {"metadata": {"name": "vllm", "namespace": "serving"}, "spec": spec}


def pod(
    name: str, ip: str, *, ready: bool = True, leaving: bool = False, app: str = "vllm"
) -> dict[str, Any]:
    """A pod."""
    metadata: dict[str, Any] = {"name": name, "labels": {"app": app}}
    if leaving:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {"metadata": metadata, "status": {"podIP": ip, "conditions": conditions}}
