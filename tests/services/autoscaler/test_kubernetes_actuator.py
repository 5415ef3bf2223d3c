"""The Kubernetes actuator against an HTTP server that answers as the API server does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headway.errors import HeadwayError
from services.autoscaler.actuators.kubernetes import KubernetesActuator
from services.runtime import kubernetes
from tests.fakes.certificates import make_certificates
from tests.fakes.kube_watch import (
    TOKEN,
    KubeApi,
    kube_api,
    look_in,
    serving_api,
    write_kubeconfig,
)

DEPLOYMENTS = {"prefill": "headway-prefill", "decode": "headway-decode"}


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeApi]:
    async with serving_api(tmp_path, monkeypatch) as found:
        found.replicas = {"headway-prefill": 2, "headway-decode": 0}
        yield found


@asynccontextmanager
async def actuator(
    deployments: dict[str, str], namespace: str = ""
) -> AsyncIterator[KubernetesActuator]:
    made = KubernetesActuator(deployments, namespace)
    try:
        yield made
    finally:
        await made.close()


async def test_the_scale_subresource_is_read_and_patched(server: KubeApi) -> None:
    async with actuator(DEPLOYMENTS) as made:
        assert await made.ordered() == {"prefill": 2, "decode": 0}
        await made.scale("decode", 3)
        assert await made.ordered() == {"prefill": 2, "decode": 3}
    assert server.patches == [
        ("headway-decode", "application/merge-patch+json", {"spec": {"replicas": 3}})
    ]


async def test_inside_a_cluster_it_is_the_pods_own_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = make_certificates(tmp_path / "certificates")
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "namespace").write_text("serving\n")
    found = "kubernetes_asyncio.config.incluster_config.SERVICE_"
    monkeypatch.setattr(found + "TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(found + "CERT_FILENAME", str(certificates["tls_ca"]))
    monkeypatch.setattr(kubernetes, "_NAMESPACE_FILE", tmp_path / "namespace")
    async with kube_api(certificates) as server:
        server.replicas = {"headway-decode": 1}
        host, port = server.url.removeprefix("https://").split(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        async with actuator({"decode": "headway-decode"}) as made:
            await made.scale("decode", 4)
            assert await made.ordered() == {"decode": 4}


async def test_a_deployment_that_is_not_there_is_no_role_of_its_own(server: KubeApi) -> None:
    async with actuator({**DEPLOYMENTS, "convertible": "headway-convertible"}) as made:
        assert "convertible" not in await made.ordered()


async def test_a_refusal_is_told_with_its_reason(server: KubeApi) -> None:
    async with actuator(DEPLOYMENTS, "elsewhere") as made:
        with pytest.raises(HeadwayError, match="403 Forbidden"):
            await made.scale("decode", 3)


async def test_a_server_that_is_not_there_is_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_in(write_kubeconfig(tmp_path, "http://127.0.0.1:1"), monkeypatch)
    async with actuator(DEPLOYMENTS) as made:
        with pytest.raises(HeadwayError, match="does not answer"):
            await made.ordered()


async def test_without_a_cluster_and_a_kubeconfig_the_way_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_in(tmp_path / "nothing", monkeypatch)
    async with actuator(DEPLOYMENTS) as made:
        with pytest.raises(HeadwayError, match="neither inside a cluster nor a kubeconfig"):
            await made.ordered()
