"""A connection to the API server of Kubernetes (extra ``kubernetes``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.errors import Code, HeadwayError

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def require_client(who: str) -> None:
    """Raise FAILED_PRECONDITION where the client's package is not installed."""
    try:
        import kubernetes_asyncio  # noqa: F401 (looked for, so that a lack is told early)
    except ImportError as error:
        message = f"{who} needs its client: pip install 'headway[kubernetes]'"
        raise HeadwayError(Code.FAILED_PRECONDITION, message) from error


class ApiServer:
    """The API server, connected to when it is first asked; ``namespace`` "": the account's own.

    Inside a cluster the pod's own service account is used, elsewhere the kubeconfig.
    """

    def __init__(self, namespace: str = "") -> None:
        self.namespace = namespace
        self._client: Any = None

    async def api(self, kind: str) -> Any:
        """Return an API of this kind (``CoreV1Api``); UNAVAILABLE without account and kubeconfig.

        ``namespace`` is known from then on.
        """
        from kubernetes_asyncio import client, config

        if self._client is None:
            settings = client.Configuration()
            load: Any = config.load_incluster_config
            try:
                load(client_configuration=settings)
                self.namespace = self.namespace or _own_namespace()
            except config.ConfigException:
                self.namespace = await _load_kubeconfig(settings, self.namespace)
            self._client = client.ApiClient(settings)
        return getattr(client, kind)(self._client)

    async def close(self) -> None:
        """Close the connections; the next question opens one."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()


async def _load_kubeconfig(settings: Any, namespace: str) -> str:
    from kubernetes_asyncio import config

    try:
        await config.load_kube_config(client_configuration=settings)
        _, active = config.list_kube_config_contexts()
    except config.ConfigException as error:
        message = f"neither inside a cluster nor a kubeconfig: {error}"
        raise HeadwayError(Code.UNAVAILABLE, message) from error
    context = (active or {}).get("context", {})
    return namespace or str(context.get("namespace", "default"))


def _own_namespace() -> str:
    return _NAMESPACE_FILE.read_text("utf-8").strip()
