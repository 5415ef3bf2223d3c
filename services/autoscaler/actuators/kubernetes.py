"""``kubernetes``: the scale subresource of one Deployment per role.

Needs the extra ``kubernetes``, and a service account that may get and patch ``deployments/scale``
(``deploy/kubernetes/base/rbac.yaml``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.errors import Code, HeadwayError
from services.autoscaler.actuators.protocol import Actuator
from services.runtime.kubernetes import ApiServer, require_client

_TIMEOUT = 5.0


class KubernetesActuator(Actuator):
    """Asks the API server; ``deployments`` are their names by role."""

    name = "kubernetes"

    def __init__(self, deployments: Mapping[str, str], namespace: str = "") -> None:
        require_client("the kubernetes actuator")
        self._deployments = deployments
        self._server = ApiServer(namespace)

    async def ordered(self) -> Mapping[str, int]:
        """Return ``spec.replicas`` by role; leave out roles whose Deployment does not exist."""
        counts: dict[str, int] = {}
        for role, deployment in self._deployments.items():
            scale = await self._call("read_namespaced_deployment_scale", deployment)
            if scale is not None:
                counts[role] = scale.spec.replicas or 0
        return counts

    async def scale(self, role: str, num_instances: int) -> None:
        """Patch ``spec.replicas``; pods that are removed get SIGTERM and drain."""
        body = {"spec": {"replicas": num_instances}}
        deployment = self._deployments[role]
        await self._call("patch_namespaced_deployment_scale", deployment, body)

    async def _call(self, method: str, deployment: str, *body: object) -> Any:
        from aiohttp import ClientError
        from kubernetes_asyncio.client.exceptions import ApiException

        options: dict[str, Any] = {"_request_timeout": _TIMEOUT}
        if body:
            options["_content_type"] = "application/merge-patch+json"
        try:
            api = await self._server.api("AppsV1Api")
            return await getattr(api, method)(deployment, self._server.namespace, *body, **options)
        except ApiException as error:
            if error.status == 404:
                return None
            message = f"the API server refuses {method} of {deployment}: {error.status} "
            raise HeadwayError(Code.UNAVAILABLE, message + str(error.reason)) from error
        except (TimeoutError, ClientError, OSError) as error:
            message = f"the API server does not answer: {error!r}"
            raise HeadwayError(Code.UNAVAILABLE, message) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._server.close()
