"""The doors of the manifests: each port with who reaches it, and what a process may do inside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.runtime.identity.access import WHO_MAY_CALL
from tests.fakes.compose_files import COMPOSE
from tests.fakes.manifests import RENDERED, allowed_from, container, of_kind, settings

ROOT = Path(__file__).resolve().parents[2]
SERVES = {
    "gateway": ("Gateway", "TokenSink"),
    "scheduler": ("Scheduler",),
    "worker": ("Worker",),
    "predictor": ("Predictor",),
    "autoscaler": ("Autoscaler", "ExternalScaler"),
}
PUBLIC = {("gateway", 8000), ("gateway", 50051)}
"""The ports that clients reach: HTTP with keys, gRPC with clients' certificates."""
OUTSIDE = {"operator", "supervisor", "client"}
"""Callers that are no pods of ours."""


def workloads(name: str) -> Iterator[dict[str, Any]]:
    yield from of_kind(name, "Deployment").values()
    yield from of_kind(name, "StatefulSet").values()


def callers(*services: str) -> set[str]:
    """Roles that the table lets call one of these gRPC services."""
    return {
        str(role)
        for method, roles in WHO_MAY_CALL.items()
        if method.split("/")[1].rpartition(".")[2] in services
        for role in roles
    }


@pytest.mark.parametrize("name", RENDERED)
def test_every_port_of_a_pod_is_covered_and_reached_by_those_of_the_table(name: str) -> None:
    for workload in workloads(name):
        labels = workload["spec"]["template"]["metadata"]["labels"]
        service, reached = labels["headway/service"], allowed_from(name, labels)
        opened = {each["containerPort"] for each in container(workload)["ports"]}
        assert set(reached) == opened, f"{service}: a policy for each port, and for no other"
        for port, peers in reached.items():
            if (service, port) in PUBLIC:
                assert peers == {"anybody"}
            elif port == 9100:
                assert peers == {"monitoring"}, "metrics and probes, without a certificate"
            elif service == "redis":
                assert peers == set(SERVES)
            else:
                theirs = SERVES[service] if port == 50051 else ("TokenSink",)
                assert peers - {"keda"} == callers(*theirs) - OUTSIDE
                assert "anybody" not in peers


@pytest.mark.parametrize("name", RENDERED)
def test_clients_need_a_key(name: str) -> None:
    gateway = of_kind(name, "Deployment")["headway-gateway"]
    given = {each["name"]: each.get("value") for each in container(gateway)["env"]}
    mounts = {each["name"]: each["mountPath"] for each in container(gateway)["volumeMounts"]}
    assert given["HEADWAY_API_KEY_FILE"] == f"{mounts['keys']}/api-keys"
    volumes = gateway["spec"]["template"]["spec"]["volumes"]
    (keys,) = [each["secret"] for each in volumes if each["name"] == "keys"]
    assert keys["secretName"] == "headway-api-keys"
    assert "headway-api-keys" in (ROOT / "deploy/kubernetes-secrets").read_text("utf-8")


def test_a_page_whose_name_leads_to_the_published_port_is_refused() -> None:
    given = COMPOSE["services"]["gateway"]["environment"]
    assert given["HEADWAY_ALLOWED_HOST"] == "localhost,gateway"


@pytest.mark.parametrize("name", RENDERED)
def test_a_pod_has_no_privilege_no_token_and_a_certificate_or_a_password(name: str) -> None:
    for workload in workloads(name):
        pod, ours = workload["spec"]["template"]["spec"], container(workload)
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert ours["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        for shared in ("hostNetwork", "hostPID", "hostIPC"):
            assert shared not in pod
        assert not any("hostPath" in volume for volume in pod["volumes"])
        assert not any("hostPort" in port for port in ours["ports"])
        scales = (name, workload["metadata"]["name"]) == ("direct", "headway-autoscaler")
        assert pod["automountServiceAccountToken"] is scales
        secrets = [each["secret"] for each in pod["volumes"] if "secret" in each]
        assert secrets, "its certificate, or the store's password"
        assert all(each["defaultMode"] == 0o440 for each in secrets)
    assert {"HEADWAY_TLS_CERT", "HEADWAY_TLS_KEY", "HEADWAY_TLS_CA"} <= set(settings(name))


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_container_has_no_privilege_and_publishes_at_most_loopback(name: str) -> None:
    spec = COMPOSE["services"][name]
    assert spec["read_only"] is True
    assert spec["cap_drop"] == ["ALL"]
    assert spec["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "devices", "pid", "ipc"} & set(spec)
    assert spec.get("network_mode") in (None, "none")
    assert not any(text.startswith(("/", ".")) for text in spec.get("volumes", ()))
    assert spec.get("ports", []) == (["127.0.0.1:8000:8000"] if name == "gateway" else [])
    if name == "redis":
        assert not spec["user"].startswith(("0", "root"))
