"""The watch over an InferencePool and its pods at the API server of Kubernetes.

It lists, then watches from where the list ended. A watch that the server ends goes on from the last
change it told of; one that is too old (410 Gone), or was broken off, begins with a list again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from aiohttp import ClientError

from headway.core.picker.pods import PodFacts, PoolPods, PoolSpec
from headway.errors import HeadwayError
from services.runtime.essential import end_tasks, essential
from services.runtime.kubernetes import ApiServer
from services.runtime.logs import get_logger

_GROUP, _VERSION, _PLURAL = "inference.networking.k8s.io", "v1", "inferencepools"
_WATCH_SECONDS, _PATIENCE = 60, 75.0
"""Seconds after which the server ends a watch, and after which a silent one counts as broken."""
_PAUSES = (0.2, 10.0)
"""Seconds, first and longest, before another try."""

Change = tuple[str, Any]
"""``LIST`` with all objects, or ``ADDED``, ``MODIFIED`` or ``DELETED`` with one."""


class PoolWatch:
    """The endpoints of one pool, ``name`` or ``namespace/name``; ``changed`` is called for news."""

    def __init__(self, name: str, changed: Callable[[], None]) -> None:
        namespace, _, self._name = name.rpartition("/")
        self._server = ApiServer(namespace)
        self._changed = changed
        self._pods = PoolPods()
        self._log = get_logger()
        self._watching_pods: asyncio.Task[object] | None = None
        self._watching = essential(self._watch_pool(), f"InferencePool {name}")

    @property
    def endpoints(self) -> tuple[tuple[str, int], ...]:
        """Addresses and ports, as far as the API server has told."""
        return self._pods.endpoints

    async def close(self) -> None:
        """Stop watching."""
        await end_tasks(self._watching, self._watching_pods)
        await self._server.close()

    # --- what is watched --------------------------------------------------------------

    async def _watch_pool(self) -> None:
        only = {"field_selector": f"metadata.name={self._name}"}
        async for change, pool in self._follow(self._all_pools, only):
            if change == "LIST":
                pool = next((each for each in pool if _name_of(each) == self._name), None)
                if pool is None:
                    self._log.warning("no_inference_pool", pool=self._name)
            spec = None if change == "DELETED" or pool is None else pool_spec(pool)
            if self._pods.pool_is(spec):
                await self._watch_other_pods()
            self._changed()

    async def _watch_other_pods(self) -> None:
        await end_tasks(self._watching_pods)
        self._watching_pods = None
        spec = self._pods.spec
        if spec is not None and spec.label_selector:
            watching = self._watch_pods(spec.label_selector)
            self._watching_pods = essential(watching, f"pods of {self._name}")

    async def _watch_pods(self, selector: str) -> None:
        async for change, pods in self._follow(self._all_pods, {"label_selector": selector}):
            before = self._pods.endpoints
            if change == "LIST":
                self._pods.listed(map(pod_facts, pods))
            elif change == "DELETED":
                self._pods.gone(_name_of(pods))
            else:
                self._pods.changed(pod_facts(pods))
            if self._pods.endpoints != before:
                self._changed()

    async def _all_pools(self, **query: Any) -> Any:
        api = await self._server.api("CustomObjectsApi")
        where = (_GROUP, _VERSION, self._server.namespace, _PLURAL)
        return await api.list_namespaced_custom_object(*where, **query)

    async def _all_pods(self, **query: Any) -> Any:
        api = await self._server.api("CoreV1Api")
        return await api.list_namespaced_pod(self._server.namespace, **query)

    # --- list and watch ---------------------------------------------------------------

    async def _follow(
        self, ask: Callable[..., Any], query: Mapping[str, str]
    ) -> AsyncIterator[Change]:
        """Yield all objects, then each change, for ever."""
        from kubernetes_asyncio.client.exceptions import ApiException

        pause, version = _PAUSES[0], ""
        while True:
            try:
                if not version:
                    reply = await self._read(ask, query)
                    version = str(reply["metadata"]["resourceVersion"])
                    yield "LIST", reply.get("items") or []
                async with aclosing(self._watch(ask, query, version)) as changes:
                    async for change, changed in changes:
                        version, pause = str(changed["metadata"]["resourceVersion"]), _PAUSES[0]
                        if change != "BOOKMARK":
                            yield change, changed
                continue
            except ApiException as error:
                reason, is_gone = f"{error.status} {error.reason}", error.status == 410
            except HeadwayError as error:
                reason, is_gone = error.message, False
            except (ClientError, OSError, TimeoutError, ValueError, LookupError) as error:
                reason, is_gone = repr(error), False
            version = ""
            if not is_gone:
                self._log.warning("kubernetes_unreadable", pool=self._name, reason=reason)
                await asyncio.sleep(random.uniform(0.5, 1.0) * pause)
                pause = min(2 * pause, _PAUSES[1])

    @staticmethod
    async def _read(ask: Callable[..., Any], query: Mapping[str, str]) -> Any:
        from kubernetes_asyncio.client.exceptions import ApiException

        async with await ask(**query, _preload_content=False, _request_timeout=_PATIENCE) as reply:
            body = await reply.json()
            if reply.status != 200:
                raise ApiException(status=reply.status, reason=body.get("message"))
            return body

    @staticmethod
    async def _watch(
        ask: Callable[..., Any], query: Mapping[str, str], version: str
    ) -> AsyncGenerator[Change, None]:
        """Yield changes behind a version until the server ends the watch; ApiException for 410."""
        from kubernetes_asyncio.watch import Watch

        options: dict[str, Any] = {
            "resource_version": version,
            "allow_watch_bookmarks": True,
            "timeout_seconds": _WATCH_SECONDS,
            "_request_timeout": _PATIENCE,
        }
        async with Watch(return_type="object") as watch:
            async for event in watch.stream(ask, **query, **options):
                yield str(event["type"]), event["raw_object"]


def pool_spec(pool: Mapping[str, Any]) -> PoolSpec:
    """Return what an InferencePool selects."""
    spec = pool.get("spec") or {}
    labels = (spec.get("selector") or {}).get("matchLabels") or {}
    return PoolSpec(dict(labels), tuple(port["number"] for port in spec.get("targetPorts") or ()))


def pod_facts(pod: Mapping[str, Any]) -> PodFacts:
    """Return what counts of a pod."""
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    conditions = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    return PodFacts(
        _name_of(pod),
        str(status.get("podIP") or ""),
        metadata.get("labels") or {},
        is_ready=conditions.get("Ready") == "True",
        is_leaving=bool(metadata.get("deletionTimestamp")),
    )


def _name_of(resource: Mapping[str, Any]) -> str:
    return str(resource["metadata"]["name"])
