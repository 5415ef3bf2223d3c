"""compose.yaml is valid and names only what exists."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from typing import Any

import pytest
import yaml

from services.runtime.identity.roles import ServiceRole
from tests.fakes.compose_files import COMPOSE, CONFIGS, ROOT

OURS = {name: spec for name, spec in COMPOSE["services"].items() if name not in ("redis", "certs")}


def test_the_file_follows_the_compose_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*command, str(ROOT / "compose.yaml")], check=True, capture_output=True)


@pytest.mark.parametrize("name", OURS)
def test_a_service_runs_a_module_that_exists_with_flags_that_exist(name: str) -> None:
    spec = OURS[name]
    module = spec["command"][2]
    assert importlib.util.find_spec(f"{module}.__main__") is not None
    fields = set(CONFIGS[module].model_fields)
    for variable in spec["environment"]:
        assert variable.removeprefix("HEADWAY_").lower() in fields, variable
    assert spec["environment"]["HEADWAY_ADVERTISE"] == f"{name}:50051"


@pytest.mark.parametrize("name", [name for name in COMPOSE["services"] if name != "certs"])
def test_every_service_has_a_health_check_and_only_loopback_is_published(name: str) -> None:
    spec = COMPOSE["services"][name]
    assert spec["healthcheck"]["test"][0] == "CMD"
    assert all(port.startswith("127.0.0.1:") for port in spec.get("ports", []))


def test_there_are_two_prefill_and_two_decode_workers() -> None:
    plain = [spec for spec in OURS.values() if "profiles" not in spec]
    roles = [spec["environment"].get("HEADWAY_ROLE") for spec in plain]
    assert (roles.count("prefill"), roles.count("decode")) == (2, 2)


def test_the_podman_files_change_only_services_that_exist() -> None:
    over: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.podman.yaml").read_text())
    assert set(over["services"]) <= set(COMPOSE["services"])
    subprocess.run(["bash", "-n", str(ROOT / "deploy" / "podman-stack")], check=True)


def test_the_podman_script_refuses_to_guess_a_command() -> None:
    script = str(ROOT / "deploy" / "podman-stack")
    done = subprocess.run([script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "give a command" in done.stderr


def test_the_image_carries_what_the_services_import_and_is_not_run_by_root() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copied = {line.split()[1] for line in lines if line.startswith("COPY") and "toml" not in line}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]
    assert copied == set(project["build"]["targets"]["wheel"]["only-include"])
    kept = (ROOT / ".dockerignore").read_text().split()
    assert kept[0] == "*"
    assert {f"!{name}" for name in copied} <= set(kept)
    assert lines.index("USER headway") < next(
        number for number, line in enumerate(lines) if line.startswith("CMD")
    )


def test_every_file_that_an_image_installs_has_a_hash_and_its_pinned_version() -> None:
    pinned, locked = _versions("constraints.txt"), _versions("requirements.lock")
    assert all(pinned.get(name, version) == version for name, version in locked.items())
    text = (ROOT / "requirements.lock").read_text().replace("\\\n", "")
    assert all("--hash=sha256:" in line for line in text.splitlines() if "==" in line)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["kubernetes"]]
    assert {_name(each) for each in wanted} - set(locked) == {"torch"}
    assert "--require-hashes --no-deps -r requirements.lock" in (ROOT / "Dockerfile").read_text()


def _versions(file: str) -> dict[str, str]:
    lines = (ROOT / file).read_text().splitlines()
    return {_name(line): line.split("==")[1].split()[0] for line in lines if "==" in line}


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-")


def test_every_service_has_the_certificate_of_its_role_and_no_other() -> None:
    made = {text.partition(":")[2]: text for text in COMPOSE["services"]["certs"]["volumes"]}
    assert set(made) == {f"/etc/headway/certs/{role}" for role in (*ServiceRole, "authority")}
    for spec in OURS.values():
        role = spec["command"][2].removeprefix("services.")
        mounted = [text for text in spec["volumes"] if "/etc/headway" in text]
        assert mounted == [f"{role}-tls:/etc/headway/tls:ro"]
        environment = spec["environment"]
        for option in ("CERT", "KEY", "CA"):
            assert environment[f"HEADWAY_TLS_{option}"].startswith("/etc/headway/tls/")
        assert ("HEADWAY_TLS_CLIENT_CA" in environment) is (role == "gateway")
        assert "HEADWAY_ALLOW_PLAINTEXT" not in environment
        assert "certs" in spec["depends_on"]


def test_the_image_has_the_folders_of_the_certificates_for_its_user() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert f"for role in authority {' '.join(_roles_in_order())}; " in text


def _roles_in_order() -> list[str]:
    return [str(role) for role in ServiceRole]


@pytest.mark.parametrize("file", ["compose.yaml", "deploy/compose.podman.yaml"])
def test_the_store_asks_for_a_password_that_no_command_line_shows(file: str) -> None:
    redis = yaml.safe_load((ROOT / file).read_text())["services"]["redis"]
    assert 'echo "requirepass $$REDISCLI_AUTH" | redis-server -' in redis["command"][2]
    assert COMPOSE["services"]["redis"]["environment"]["REDISCLI_AUTH"].startswith(
        "${STORE_PASSWORD:?"
    )
    for spec in OURS.values():
        assert "redis://:${STORE_PASSWORD:?" in spec["environment"]["HEADWAY_STORE"]


def test_nothing_but_the_gateways_http_is_published_and_no_probe_needs_a_certificate() -> None:
    for name, spec in COMPOSE["services"].items():
        assert spec.get("ports", []) == (["127.0.0.1:8000:8000"] if name == "gateway" else [])
    for name, spec in OURS.items():
        port = 8000 if name == "gateway" else 9100
        assert f"http://127.0.0.1:{port}/" in spec["healthcheck"]["test"][-1]
