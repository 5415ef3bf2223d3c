"""Leader and standby of several pickers, by a Lease and an EndpointSlice of Kubernetes.

All of them watch the endpoints, so each could answer at once. The one that holds the lease writes
its address into the slice of the Service that gateways ask. So all are ready, and one is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from aiohttp import ClientError

from headway.core.picker.lease import LeaseCandidate, LeaseSeen, LeaseStep
from headway.errors import HeadwayError
from services.runtime.essential import end_tasks, essential
from services.runtime.kubernetes import ApiServer
from services.runtime.logs import get_logger

SECONDS = 6.0
"""Seconds for which a lease holds behind its last change."""
_TRIES = 3  # in that time
_PATIENCE = 2.0
_MERGE = "application/merge-patch+json"


class PickerLeadership:
    """One picker's part in it, until it is closed.

    ``service``: the Service's name, or ``namespace/name``; the lease has the same. ``name``: this
    picker's. ``address`` and ``port``: where it is asked.
    """

    def __init__(
        self, service: str, name: str, address: str, port: int, now: Callable[[], float]
    ) -> None:
        namespace, _, self._service = service.rpartition("/")
        self._server = ApiServer(namespace)
        self._name = name
        self._at = address, port
        self._now = now
        self._log = get_logger()
        self._candidate = LeaseCandidate(name)
        self._lease: Any = None
        self._watching = essential(self._run(), f"lease {service}")

    @property
    def leads(self) -> bool:
        """True while this picker is the one that is asked."""
        return self._candidate.leads

    async def close(self) -> None:
        """Give the lease up, and leave another the time to take it before this one stops."""
        await end_tasks(self._watching)
        if self.leads:
            try:
                await self._read()
                if self._lease.spec.holder_identity == self._name:
                    await self._write("")
                    await asyncio.sleep(SECONDS / _TRIES)
            except Exception as error:
                self._log.warning("lease_kept", reason=repr(error))
        await self._server.close()

    async def _run(self) -> None:
        while True:
            led = self.leads
            try:
                await self._step()
            except HeadwayError as error:
                self._log.warning("lease_unreadable", reason=error.message)
            except (ClientError, OSError, TimeoutError, ValueError) as error:
                self._log.warning("lease_unreadable", reason=repr(error))
            if led != self.leads:
                self._log.info("leads" if self.leads else "stands_by", service=self._service)
            await asyncio.sleep(SECONDS / _TRIES)

    async def _step(self) -> None:
        from kubernetes_asyncio.client.exceptions import ApiException

        try:
            step = self._candidate.seen(await self._read(), now=self._now())
            if step is LeaseStep.WAIT:
                return
            await (self._create() if step is LeaseStep.CREATE else self._write(self._name))
            self._candidate.wrote()
            await self._answer_for_service()
        except ApiException as error:
            if error.status != 409:  # another was faster
                self._log.warning("lease_unreadable", reason=f"{error.status} {error.reason}")

    # --- the lease --------------------------------------------------------------------

    async def _read(self) -> LeaseSeen | None:
        from kubernetes_asyncio.client.exceptions import ApiException

        api = await self._server.api("CoordinationV1Api")
        try:
            self._lease = await api.read_namespaced_lease(
                self._service, self._server.namespace, _request_timeout=_PATIENCE
            )
        except ApiException as error:
            if error.status != 404:
                raise
            return None
        spec = self._lease.spec
        seconds = float(spec.lease_duration_seconds or SECONDS)
        return LeaseSeen(spec.holder_identity or "", self._lease.metadata.resource_version, seconds)

    async def _create(self) -> None:
        api = await self._server.api("CoordinationV1Api")
        body = {"metadata": {"name": self._service}, "spec": self._spec(self._name, 0)}
        await api.create_namespaced_lease(self._server.namespace, body, _request_timeout=_PATIENCE)

    async def _write(self, holder: str) -> None:
        """Write this holder, unless the lease has changed since it was read (409)."""
        api = await self._server.api("CoordinationV1Api")
        number = (self._lease.spec.lease_transitions or 0) + (
            self._lease.spec.holder_identity != holder
        )
        metadata = {
            "name": self._service,
            "resourceVersion": self._lease.metadata.resource_version,
        }
        body = {"metadata": metadata, "spec": self._spec(holder, number)}
        await api.replace_namespaced_lease(
            self._service, self._server.namespace, body, _request_timeout=_PATIENCE
        )

    @staticmethod
    def _spec(holder: str, num_transitions: int) -> dict[str, Any]:
        return {
            "holderIdentity": holder,
            "leaseDurationSeconds": int(SECONDS),
            "leaseTransitions": num_transitions,
            "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }

    # --- the Service ------------------------------------------------------------------

    async def _answer_for_service(self) -> None:
        """Let the Service lead here. Written each time, since others may change it."""
        from kubernetes_asyncio.client.exceptions import ApiException

        api = await self._server.api("DiscoveryV1Api")
        name, (address, port) = f"{self._service}-leader", self._at
        content = {
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
            "ports": [
                {
                    "name": "ext-proc",
                    "port": port,
                    "protocol": "TCP",
                    "appProtocol": "kubernetes.io/h2c",
                }
            ],
        }
        try:
            await api.patch_namespaced_endpoint_slice(
                name,
                self._server.namespace,
                content,
                _content_type=_MERGE,
                _request_timeout=_PATIENCE,
            )
        except ApiException as error:
            if error.status != 404:
                raise
            labels = {
                "kubernetes.io/service-name": self._service,
                "endpointslice.kubernetes.io/managed-by": "headway-picker",
            }
            metadata = {"name": name, "labels": labels}
            kind = "IPv6" if ":" in address else "IPv4"
            body = {"metadata": metadata, "addressType": kind, **content}
            await api.create_namespaced_endpoint_slice(
                self._server.namespace, body, _request_timeout=_PATIENCE
            )
