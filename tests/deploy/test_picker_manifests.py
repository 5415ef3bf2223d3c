"""deploy/picker's manifests are valid; their names and rights are those that the picker uses."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from prometheus_client import CollectorRegistry

from services.picker.config import PickerConfig
from services.picker.metrics import PickerMetrics
from services.runtime.config import read_config
from tests.fakes.picker_manifests import FILE, MANIFESTS, one

KUBERNETES = "1.30"
_OURS = re.compile(r"inference\.networking\.k8s\.io|gateway\.networking\.k8s\.io")
_CRDS = os.environ.get("HEADWAY_CRDS", "")
_KNOWN: dict[str, dict[str, set[str]]] = {
    "InferencePool": {
        "spec": {"selector", "targetPorts", "endpointPickerRef", "appProtocol"},
        "selector": {"matchLabels"},
        "endpointPickerRef": {"group", "kind", "name", "port", "failureMode"},
    },
    "HTTPRoute": {
        "spec": {"parentRefs", "hostnames", "rules"},
        "rules": {"name", "matches", "filters", "backendRefs", "timeouts"},
        "backendRefs": {"group", "kind", "name", "namespace", "port", "weight", "filters"},
        "timeouts": {"request", "backendRequest"},
    },
}
"""Fields of the two custom resources, where our manifests use any."""


def _is_custom(manifest: dict[str, Any]) -> bool:
    return bool(_OURS.match(manifest["apiVersion"]))


@pytest.mark.parametrize(
    "manifest", [m for m in MANIFESTS if not _is_custom(m)], ids=lambda m: str(m["kind"])
)
def test_every_object_of_kubernetes_follows_its_schema(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


@pytest.mark.parametrize("kind", _KNOWN)
def test_custom_resources_have_known_fields_alone(kind: str) -> None:
    known = _KNOWN[kind]

    def look(value: object, name: str) -> None:
        if isinstance(value, list):
            for each in value:
                look(each, name)
        elif isinstance(value, dict):
            assert set(value) <= known.get(name, set(value)), name
            for key, each in value.items():
                look(each, key)

    look(one(kind)["spec"], "spec")


@pytest.mark.skipif(not _CRDS, reason="HEADWAY_CRDS names no folder of the resources' definitions")
@pytest.mark.parametrize("kind", _KNOWN)
def test_custom_resources_follow_their_definitions(kind: str) -> None:
    manifest = one(kind)
    files = (yaml.safe_load(file.read_text()) for file in sorted(Path(_CRDS).glob("*.yaml")))
    (definition,) = (d for d in files if d["spec"]["names"]["kind"] == kind)
    version = manifest["apiVersion"].rpartition("/")[2]
    (schema,) = (
        v["schema"]["openAPIV3Schema"]
        for v in definition["spec"]["versions"]
        if v["name"] == version and v["served"]
    )
    jsonschema.validate(manifest, _strict(schema))


def test_kedas_object_follows_its_schema_and_asks_for_metrics_that_exist() -> None:
    scaled = yaml.safe_load(FILE.with_name("keda.yaml").read_text(encoding="utf-8"))
    schema = json.loads(Path(__file__).with_name("scaledobject.schema.json").read_text())
    jsonschema.validate(scaled, schema)
    registry = CollectorRegistry()
    PickerMetrics(registry)
    names = {metric.name for metric in registry.collect()}
    queries = [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]
    asked = [re.findall(r"headway_\w+", query) for query in queries]
    assert all(asked)
    assert {name for each in asked for name in each} <= names


def _strict(schema: Any) -> Any:
    """Return a schema that refuses unknown fields, as the API server does with validation on."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _strict(each) for key, each in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        found.setdefault("additionalProperties", False)
    return found


def test_a_misspelt_field_is_found() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"nmae": "x"}, _strict(schema))


def test_the_picker_starts_with_its_flags_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    (container,) = one("Deployment")["spec"]["template"]["spec"]["containers"]
    for each in container["env"]:
        monkeypatch.setenv(each["name"], "10.0.0.1")
    config = read_config(PickerConfig, container["args"])
    assert config.service_id == config.advertise == "10.0.0.1"
    assert config.inference_pool == one("InferencePool")["metadata"]["name"]
    assert config.leader_of == one("Service")["metadata"]["name"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert config.listen.endswith(f":{ports['ext-proc']}")


def test_gateways_find_pool_and_picker() -> None:
    (rule,) = one("HTTPRoute")["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    pool = one("InferencePool")
    assert backend["name"] == pool["metadata"]["name"]
    asked, service = pool["spec"]["endpointPickerRef"], one("Service")
    assert asked["name"] == service["metadata"]["name"]
    assert asked["port"]["number"] == service["spec"]["ports"][0]["port"]
    assert asked["failureMode"] == "FailOpen"


def test_the_leader_alone_is_behind_the_service() -> None:
    assert "selector" not in one("Service")["spec"]


def test_a_node_may_be_drained_while_one_picker_is_left() -> None:
    budget, deployment = one("PodDisruptionBudget")["spec"], one("Deployment")["spec"]
    assert budget["selector"] == deployment["selector"]
    assert budget["minAvailable"] < deployment["replicas"]


def test_the_account_that_pods_have_has_the_role() -> None:
    account = one("ServiceAccount")["metadata"]["name"]
    assert one("Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == account
    assert one("RoleBinding")["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    assert one("RoleBinding")["roleRef"]["name"] == one("Role")["metadata"]["name"]


def test_names_to_be_replaced_are_in_capitals() -> None:
    found = set(re.findall(r"\b[A-Z]+-?[A-Z]{3,}\b", re.sub(r"#.*", "", FILE.read_text())))
    assert found - {"ALL", "HEADWAY"} == {"VLLM-APP", "GATEWAY", "HEADWAY-IMAGE"}


def test_a_policy_leaves_open_what_the_picker_listens_on_and_nothing_to_everybody() -> None:
    deployment, policy = one("Deployment")["spec"], one("NetworkPolicy")["spec"]
    assert policy["podSelector"] == deployment["selector"]
    assert policy["policyTypes"] == ["Ingress"]
    (container,) = deployment["template"]["spec"]["containers"]
    opened = [port["port"] for rule in policy["ingress"] for port in rule["ports"]]
    assert opened == [each["containerPort"] for each in container["ports"]]
    assert all(rule["from"] for rule in policy["ingress"])
