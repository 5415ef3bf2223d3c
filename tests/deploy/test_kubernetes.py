"""deploy/kubernetes is valid, names only what exists, and says the same thing everywhere."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from headway.policies import registry
from services.autoscaler.config import AutoscalerConfig
from services.runtime.config import ServiceConfig
from services.runtime.identity.access import WHO_MAY_CALL
from services.worker.config import WorkerConfig
from tests.fakes.compose_files import CONFIGS
from tests.fakes.manifests import FOLDER, RENDERED, allowed_from, container, of_kind, settings

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = "1.30"  # the oldest that we say we support
ROLES = ("prefill", "decode", "convertible")


@pytest.mark.parametrize("name", RENDERED)
def test_every_object_follows_its_schema(name: str, tmp_path: Path) -> None:
    for manifest in RENDERED[name]:
        if not manifest["apiVersion"].startswith("keda.sh"):
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    scaled = list(of_kind(name, "ScaledObject").values())
    files = [tmp_path / f"{each['metadata']['name']}.json" for each in scaled]
    for path, each in zip(files, scaled, strict=True):
        path.write_text(json.dumps(each))
    schema = str(Path(__file__).parent / "scaledobject.schema.json")
    command = [sys.executable, "-m", "check_jsonschema", "--schemafile", schema]
    if files:
        subprocess.run([*command, *map(str, files)], check=True, capture_output=True)


def test_a_scaled_object_with_a_misspelt_field_is_refused(tmp_path: Path) -> None:
    wrong = of_kind("base", "ScaledObject")["headway-decode"]
    wrong = {**wrong, "spec": {**wrong["spec"], "maxReplicas": 3}}
    (tmp_path / "wrong.json").write_text(json.dumps(wrong))
    schema = str(Path(__file__).parent / "scaledobject.schema.json")
    command = [sys.executable, "-m", "check_jsonschema", "--schemafile", schema]
    done = subprocess.run(
        [*command, str(tmp_path / "wrong.json")], check=False, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "maxReplicas" in done.stdout


@pytest.mark.parametrize("name", RENDERED)
def test_every_service_runs_a_module_that_exists_with_flags_that_exist(name: str) -> None:
    known = {field for config in CONFIGS.values() for field in config.model_fields}
    assert {key.removeprefix("HEADWAY_").lower() for key in settings(name)} <= known
    modules = set()
    for deployment in of_kind(name, "Deployment").values():
        ours = container(deployment)
        module = ours["command"][2]
        modules.add(module)
        assert importlib.util.find_spec(f"{module}.__main__") is not None
        fields = set(CONFIGS[module].model_fields)
        variables = {each["name"] for each in ours["env"]}
        assert {v.removeprefix("HEADWAY_").lower() for v in variables} <= fields
    assert modules == set(CONFIGS)


@pytest.mark.parametrize("name", RENDERED)
def test_the_configuration_is_one_that_every_service_takes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in settings(name).items():
        monkeypatch.setenv(key, value)
    made: dict[str, ServiceConfig] = {module: config() for module, config in CONFIGS.items()}
    autoscaler = made["services.autoscaler"]
    assert isinstance(autoscaler, AutoscalerConfig)
    policy = autoscaler.scaling_policy()
    registry.make("scaling", policy.name, **policy.params)
    deployments = of_kind(name, "Deployment")
    assert dict(autoscaler.targets_by_role()) == {role: f"headway-{role}" for role in ROLES}
    assert set(autoscaler.targets_by_role().values()) <= set(deployments)


@pytest.mark.parametrize("name", RENDERED)
def test_pods_are_probed_drained_and_confined(name: str) -> None:
    drain = float(settings(name)["HEADWAY_DRAIN_TIMEOUT"])
    for deployment in of_kind(name, "Deployment").values():
        pod, ours = deployment["spec"]["template"]["spec"], container(deployment)
        is_gateway = deployment["metadata"]["name"] == "headway-gateway"
        assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(ours)
        ready = ours["readinessProbe"]["httpGet"]
        path, port = ("/health", "http") if is_gateway else ("/ready", "metrics")
        assert (ready["path"], ready["port"]) == (path, port)
        assert ours["livenessProbe"]["httpGet"]["path"] == "/live"
        assert not any("grpc" in probe for probe in ours.values() if isinstance(probe, dict))
        assert pod["terminationGracePeriodSeconds"] > drain
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert ours["securityContext"]["readOnlyRootFilesystem"] is True
        assert pod["enableServiceLinks"] is False


@pytest.mark.parametrize("name", RENDERED)
def test_selectors_find_their_pods(name: str) -> None:
    workloads = [*of_kind(name, "Deployment").values(), *of_kind(name, "StatefulSet").values()]
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in workloads]
    for each, own in zip(workloads, labels, strict=True):
        wanted = each["spec"]["selector"]["matchLabels"].items()
        assert [found for found in labels if wanted <= found.items()] == [own]
    for service in of_kind(name, "Service").values():
        wanted = service["spec"]["selector"].items()
        assert sum(wanted <= found.items() for found in labels) == 1
    for budget in of_kind(name, "PodDisruptionBudget").values():
        wanted = budget["spec"]["selector"]["matchLabels"].items()
        assert sum(wanted <= found.items() for found in labels) == 1


def test_a_scaled_object_per_role_asks_the_autoscaler_within_its_own_bounds() -> None:
    scaled = of_kind("base", "ScaledObject")
    assert set(scaled) == {f"headway-{role}" for role in ROLES}
    said = settings("base")
    assert said["HEADWAY_ACTUATOR"] == "none", "two that scale would undo each other"
    for role in ROLES:
        spec = scaled[f"headway-{role}"]["spec"]
        assert spec["scaleTargetRef"]["name"] in of_kind("base", "Deployment")
        (trigger,) = spec["triggers"]
        assert trigger["metadata"]["role"] == role
        assert trigger["metadata"]["scalerAddress"] == "headway-autoscaler.headway.svc:50051"
        if role != "convertible":
            bounds = (spec["minReplicaCount"], spec["maxReplicaCount"])
            keys = (f"HEADWAY_MIN_{role.upper()}", f"HEADWAY_MAX_{role.upper()}")
            assert bounds == tuple(int(said[key]) for key in keys)
    service = of_kind("base", "Service")["headway-autoscaler"]
    assert service["spec"]["ports"][0]["port"] == 50051


def test_what_is_scaled_has_no_number_of_its_own() -> None:
    for role in ROLES:
        assert "replicas" not in of_kind("base", "Deployment")[f"headway-{role}"]["spec"]


def test_without_keda_the_autoscaler_may_change_what_it_scales_and_nothing_else() -> None:
    assert not of_kind("direct", "ScaledObject")
    assert settings("direct")["HEADWAY_ACTUATOR"] == "kubernetes"
    pod = of_kind("direct", "Deployment")["headway-autoscaler"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "headway-autoscaler"
    assert pod["automountServiceAccountToken"] is True
    (rule,) = of_kind("direct", "Role")["headway-autoscaler"]["rules"]
    assert rule["resources"] == ["deployments/scale"]
    assert rule["verbs"] == ["get", "patch"]
    assert set(rule["resourceNames"]) == {f"headway-{role}" for role in ROLES}
    for name, deployment in of_kind("direct", "Deployment").items():
        mounted = deployment["spec"]["template"]["spec"]["automountServiceAccountToken"]
        assert mounted is (name == "headway-autoscaler")


@pytest.mark.parametrize("name", RENDERED)
def test_a_scheduler_stands_by_elsewhere_and_gateways_find_who_leads(name: str) -> None:
    spec = of_kind(name, "Deployment")["headway-scheduler"]["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    pod, labels = spec["template"]["spec"], spec["template"]["metadata"]["labels"]
    (wanted,) = pod["affinity"]["podAntiAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert wanted["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    selected = wanted["podAffinityTerm"]["labelSelector"]["matchLabels"]
    assert selected.items() <= labels.items()
    # a Service would reach the one that stands by: the leader's own address is in the store
    for service in of_kind(name, "Service").values():
        assert not service["spec"]["selector"].items() <= labels.items()
    advertised = {each["name"]: each for each in container({"spec": spec})["env"]}
    field = advertised["HEADWAY_ADVERTISE"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert field == "status.podIP"
    assert advertised["HEADWAY_STORE"]["valueFrom"]["secretKeyRef"]["name"] == "headway-store"


def test_every_gpu_worker_has_one_gpu_and_only_workers_have() -> None:
    for name, deployment in of_kind("gpu", "Deployment").items():
        ours = container(deployment)
        is_worker = ours["command"][2] == "services.worker"
        limits = ours["resources"]["limits"]
        assert (limits.get("nvidia.com/gpu") == "1") is is_worker, name
        devices = [each["value"] for each in ours["env"] if each["name"] == "HEADWAY_DEVICE"]
        assert devices == (["cuda"] if is_worker else [])
        assert ours["image"].partition(":")[2] == "cuda"
    assert WorkerConfig.model_fields["device"].default == "cpu"


@pytest.mark.parametrize("name", RENDERED)
def test_every_service_has_the_certificate_of_its_role_and_no_other(name: str) -> None:
    for option in ("CERT", "KEY", "CA"):
        assert settings(name)[f"HEADWAY_TLS_{option}"].startswith("/etc/headway/tls/")
    assert "HEADWAY_ALLOW_PLAINTEXT" not in settings(name)
    for deployment in of_kind(name, "Deployment").values():
        role = container(deployment)["command"][2].removeprefix("services.")
        volumes = deployment["spec"]["template"]["spec"]["volumes"]
        (tls,) = [each["secret"] for each in volumes if each["name"] == "tls"]
        assert tls == {"secretName": f"headway-{role}-tls", "defaultMode": 0o440}
        mounts = {each["name"]: each for each in container(deployment)["volumeMounts"]}
        assert mounts["tls"] == {"name": "tls", "mountPath": "/etc/headway/tls", "readOnly": True}


@pytest.mark.parametrize("name", RENDERED)
def test_the_store_asks_for_a_password(name: str) -> None:
    pod = of_kind(name, "StatefulSet")["headway-redis"]["spec"]["template"]["spec"]
    (redis,) = pod["containers"]
    assert redis["args"][0] == "/etc/redis/password.conf"
    (secret,) = [each["secret"] for each in pod["volumes"] if each["name"] == "password"]
    assert secret["secretName"] == "headway-store"
    script = (ROOT / "deploy" / "kubernetes-secrets").read_text()
    assert "requirepass" in script
    subprocess.run(["bash", "-n", str(ROOT / "deploy" / "kubernetes-secrets")], check=True)


@pytest.mark.parametrize("name", RENDERED)
def test_only_the_edges_of_the_table_are_open(name: str) -> None:
    nothing = of_kind(name, "NetworkPolicy")["headway-nothing"]["spec"]
    assert nothing == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    serving = {
        "gateway": ("Gateway",),
        "scheduler": ("Scheduler",),
        "worker": ("Worker",),
        "predictor": ("Predictor",),
        "autoscaler": ("Autoscaler", "ExternalScaler"),
    }
    for workload in (*of_kind(name, "Deployment").values(), *of_kind(name, "StatefulSet").values()):
        labels = workload["spec"]["template"]["metadata"]["labels"]
        service, allowed = labels["headway/service"], allowed_from(name, labels)
        if service == "redis":
            assert allowed == {6379: set(serving)}
            continue
        callers = {
            str(role)
            for method, roles in WHO_MAY_CALL.items()
            if method.split("/")[1].rpartition(".")[2] in serving[service]
            for role in roles
        }
        # pods of ours: KEDA is an operator, and the supervisor runs on one machine alone
        pods = callers - {"operator", "supervisor", "client"}
        if service == "gateway":
            assert allowed[8000] == allowed[50051] == {"anybody"}
            assert allowed[50052] == {"worker"}
        else:
            assert allowed[50051] - {"keda"} == pods
        assert allowed[9100] == {"monitoring"}
        assert set(allowed) <= {8000, 50051, 50052, 9100}


def test_only_the_gateway_and_what_keda_and_pods_ask_has_a_service() -> None:
    services = of_kind("base", "Service")
    assert set(services) == {"headway", "headway-autoscaler", "headway-redis"}
    assert all("type" not in each["spec"] for each in services.values()), "of the cluster alone"
    assert [port["port"] for port in services["headway"]["spec"]["ports"]] == [8000, 50051]


def test_no_manifest_is_left_out() -> None:
    for folder in FOLDER.iterdir():
        said = yaml.safe_load((folder / "kustomization.yaml").read_text())
        used = {*said["resources"], *(p["path"] for p in said["patches"] if "path" in p)}
        there = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
        assert there <= used
