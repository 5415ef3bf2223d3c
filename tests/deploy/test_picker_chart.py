"""deploy/picker/chart gives the objects of deploy/picker's manifests, and refuses wrong values."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from services.picker.config import PickerConfig
from services.runtime.config import read_config
from tests.fakes.picker_manifests import FILE, MANIFESTS

_HELM = shutil.which("helm")
_CHART = FILE.with_name("chart")
_PLAIN = ["image=HEADWAY-IMAGE", "pool.matchLabels.app=VLLM-APP", "gateway=GATEWAY"]
_KEDA = ["keda.deployment=VLLM-DEPLOYMENT", "keda.prometheus=http://PROMETHEUS:9090"]

needs_helm = pytest.mark.skipif(_HELM is None, reason="helm is not installed: make picker-chart")


def _helm(values: list[str], release: str = "headway-picker") -> subprocess.CompletedProcess[str]:
    assert _HELM is not None
    sets = [f"--set-json={value}" if "[" in value else f"--set={value}" for value in values]
    command = [_HELM, "template", release, str(_CHART), *sets]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _objects(values: list[str], release: str = "headway-picker") -> dict[str, dict[str, Any]]:
    done = _helm(values, release)
    assert done.returncode == 0, done.stderr
    return {each["kind"]: each for each in yaml.safe_load_all(done.stdout)}


@needs_helm
def test_its_objects_are_those_of_the_manifests() -> None:
    keda = yaml.safe_load(FILE.with_name("keda.yaml").read_text("utf-8"))
    assert _objects([*_PLAIN, *_KEDA]) == {each["kind"]: each for each in (*MANIFESTS, keda)}


@needs_helm
def test_without_a_gateway_and_keda_there_are_no_objects_of_theirs() -> None:
    kinds = {each["kind"] for each in MANIFESTS}
    assert set(_objects(_PLAIN[:2])) == kinds - {"HTTPRoute"}
    assert set(_objects([_PLAIN[0], "pool.create=false", "pool.name=theirs", "replicas=1"])) == (
        kinds - {"HTTPRoute", "InferencePool", "PodDisruptionBudget"}
    )


@needs_helm
def test_every_name_is_the_releases() -> None:
    text = _helm([*_PLAIN, "pool.name=theirs"], "other").stdout
    assert "headway-picker" not in text.replace("# Source: headway-picker/", "")
    found = _objects([*_PLAIN, "pool.name=theirs"], "other")
    assert found["Role"]["rules"][3]["resourceNames"] == ["other"]
    assert found["Role"]["rules"][5]["resourceNames"] == ["other-leader"]
    assert found["InferencePool"]["metadata"]["name"] == "theirs"


@needs_helm
def test_who_reaches_the_pickers_is_the_operators_to_say() -> None:
    callers = '[{"ipBlock": {"cidr": "10.1.0.0/26"}}]'
    policy = _objects([*_PLAIN, f"network.callers={callers}"])["NetworkPolicy"]
    kubernetes_validate.validate(policy, "1.30", strict=True)
    assert policy["spec"]["ingress"][0]["from"] == json.loads(callers)


@needs_helm
def test_further_flags_files_and_fields_of_the_pod_reach_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    volumes = '[{"name": "files", "configMap": {"name": "picker"}}]'
    mounts = '[{"name": "files", "mountPath": "/files"}]'
    wanted = [f"pod.volumes={volumes}", f"volumeMounts={mounts}", 'args=["--num-fallbacks=5"]']
    deployment = _objects([*_PLAIN, *wanted])["Deployment"]
    kubernetes_validate.validate(deployment, "1.30", strict=True)
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (pod["volumes"], container["volumeMounts"]) == (json.loads(volumes), json.loads(mounts))
    for each in container["env"]:
        monkeypatch.setenv(each["name"], "10.0.0.1")
    assert read_config(PickerConfig, container["args"]).num_fallbacks == 5


@needs_helm
@pytest.mark.parametrize(
    ("values", "named"),
    [
        (_PLAIN[1:], "/image"),
        (_PLAIN[:1], "/pool/matchLabels"),
        ([*_PLAIN, _KEDA[0]], "/keda/prometheus"),
        ([*_PLAIN, "imagee=x"], "'imagee' not allowed"),
        ([*_PLAIN, 'pod.containers=["x"]'], "propertyName 'containers'"),
        ([*_PLAIN, "network.callers=[]"], "/network/callers"),
        ([*_PLAIN, "network.callers=null"], "/network"),
        ([*_PLAIN, 'network.callers=[{"ipBlock": {}}]'], "cidr"),
        ([*_PLAIN, "replicas=1000000"], "/replicas"),
        ([*_PLAIN, *_KEDA, "keda.minReplicas=11"], "keda.minReplicas is 11: at most"),
    ],
)
def test_wrong_values_are_refused_by_name(values: list[str], named: str) -> None:
    done = _helm(values)
    assert done.returncode != 0
    assert named in done.stderr


def test_every_value_is_in_the_schema() -> None:
    schema = json.loads((_CHART / "values.schema.json").read_text("utf-8"))
    values = yaml.safe_load((_CHART / "values.yaml").read_text("utf-8"))
    assert set(values) | {"global"} == set(schema["properties"])
    for name in ("pool", "keda", "network"):
        assert set(values[name]) == set(schema["properties"][name]["properties"])
    needed = {"image": "x", "pool": {**values["pool"], "matchLabels": {"app": "x"}}}
    jsonschema.validate({**values, **needed}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values, schema)
    for name in ("x, namespace: kube-system", "x}\n", "{{ .x }}", 'x"', "-x"):
        keda = {**values["keda"], "deployment": name}
        for wrong in ({"gateway": name}, {"keda": keda}):
            with pytest.raises(jsonschema.ValidationError, match="does not match"):
                jsonschema.validate({**values, **needed, **wrong}, schema)


def test_no_value_may_be_taken_away() -> None:
    """A null takes a default away; a network policy without callers lets everybody in."""
    schema = json.loads((_CHART / "values.schema.json").read_text("utf-8"))
    values = yaml.safe_load((_CHART / "values.yaml").read_text("utf-8"))
    assert set(schema["required"]) == set(values)
    for name in ("pool", "keda", "network"):
        assert set(schema["properties"][name]["required"]) == set(values[name])


@needs_helm
@pytest.mark.parametrize("release", ["true", "null", "123", "1e3"])
def test_a_release_may_have_a_name_that_yaml_takes_for_something_else(release: str) -> None:
    for each in _objects([*_PLAIN, *_KEDA, "pool.name=theirs"], release).values():
        assert each["metadata"]["name"] in (release, "theirs")
        if each["kind"] in ("Deployment", "Role", "RoleBinding", "NetworkPolicy"):
            kubernetes_validate.validate(each, "1.30", strict=True)


@needs_helm
def test_large_numbers_are_whole() -> None:
    found = _objects([*_PLAIN, *_KEDA, "keda.owedTokens=2000000"])["ScaledObject"]
    assert found["spec"]["triggers"][1]["metadata"]["threshold"] == "2000000"


@needs_helm
def test_a_file_of_endpoints_stands_instead_of_the_pool_and_tls_has_probes_of_its_own() -> None:
    wanted = ["endpointsFile=/files/endpoints.toml", "plaintext=false"]
    deployment = _objects([*_PLAIN, *wanted])["Deployment"]
    kubernetes_validate.validate(deployment, "1.30", strict=True)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    given = [each for each in container["args"] if "endpoints" in each or "pool" in each]
    assert given == ["--endpoints-file=/files/endpoints.toml"]
    probes = container["livenessProbe"], container["readinessProbe"]
    assert [each["httpGet"]["path"] for each in probes] == ["/live", "/ready"]
    assert all("grpc" not in each for each in probes)
