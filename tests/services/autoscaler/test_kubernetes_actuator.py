"""The Kubernetes actuator against an HTTP server that answers as the API server does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headway.errors import HeadwayError
from services.autoscaler.actuators.kubernetes import KubernetesActuator
from services.runtime import kubernetes
from tests.fakes.api_server import TOKEN, ApiServer, api_server, write_kubeconfig
from tests.fakes.certificates import make_certificates

DEPLOYMENTS = {"prefill": "headway-prefill", "decode": "headway-decode"}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with api_server("serving", {"headway-prefill": 2, "headway-decode": 0}) as found:
        config = tmp_path / "config"
        write_kubeconfig(config, found.url, "serving")
        _look_in(config, monkeypatch)
        yield found


def _look_in(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = "kubernetes_asyncio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
    monkeypatch.setattr(place, str(config))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


@asynccontextmanager
async def actuator(
    deployments: dict[str, str], namespace: str = ""
) -> AsyncIterator[KubernetesActuator]:
    made = KubernetesActuator(deployments, namespace)
    try:
        yield made
    finally:
        await made.close()


async def test_the_scale_subresource_is_read_and_patched(server: ApiServer) -> None:
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
    with api_server("serving", {"headway-decode": 1}, certificates) as server:
        host, port = server.url.removeprefix("https://").split(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        async with actuator({"decode": "headway-decode"}) as made:
            await made.scale("decode", 4)
            assert await made.ordered() == {"decode": 4}


async def test_a_deployment_that_is_not_there_is_no_role_of_its_own(server: ApiServer) -> None:
    async with actuator({**DEPLOYMENTS, "convertible": "headway-convertible"}) as made:
        assert "convertible" not in await made.ordered()


async def test_a_refusal_is_told_with_its_reason(server: ApiServer) -> None:
    async with actuator(DEPLOYMENTS, "elsewhere") as made:
        with pytest.raises(HeadwayError, match="403 Forbidden"):
            await made.scale("decode", 3)


async def test_a_server_that_is_not_there_is_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_kubeconfig(tmp_path / "config", "http://127.0.0.1:1", "serving")
    _look_in(tmp_path / "config", monkeypatch)
    async with actuator(DEPLOYMENTS) as made:
        with pytest.raises(HeadwayError, match="does not answer"):
            await made.ordered()


async def test_without_a_cluster_and_a_kubeconfig_the_way_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _look_in(tmp_path / "nothing", monkeypatch)
    async with actuator(DEPLOYMENTS) as made:
        with pytest.raises(HeadwayError, match="neither inside a cluster nor a kubeconfig"):
            await made.ordered()
