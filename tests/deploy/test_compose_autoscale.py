"""deploy/compose.autoscale.yaml is valid and scales only what is there."""

from __future__ import annotations

import shlex
import subprocess
import sys
from typing import Any

from services.autoscaler.config import AutoscalerConfig
from tests.fakes.compose_files import COMPOSE, CONFIGS, OVER, PATH

SCALED = {name: spec for name, spec in OVER["services"].items() if "extends" in spec}


def test_the_file_follows_the_compose_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*command, str(PATH)], check=True, capture_output=True)


def test_workers_that_are_scaled_have_no_fixed_name_or_address() -> None:
    for name, spec in SCALED.items():
        base = COMPOSE["services"][spec["extends"]["service"]]
        assert base["environment"]["HEADWAY_ROLE"] == name
        assert "ports" not in base
        assert spec["environment"] == {"HEADWAY_SERVICE_ID": "", "HEADWAY_ADVERTISE": ""}


def test_workers_with_a_fixed_name_stay_out() -> None:
    workers = [name for name, spec in COMPOSE["services"].items() if _is_cpu_worker(spec)]
    assert {name for name, spec in OVER["services"].items() if "profiles" in spec} == set(workers)


def _is_cpu_worker(spec: dict[str, Any]) -> bool:
    return "profiles" not in spec and spec.get("command", [""])[-1] == "services.worker"


def test_the_autoscaler_scales_these_services_by_a_command_that_knows_both_files() -> None:
    environment = OVER["services"]["autoscaler"]["environment"]
    fields = set(CONFIGS["services.autoscaler"].model_fields)
    ours = {key for key in environment if key.startswith("HEADWAY_")}
    assert {key.removeprefix("HEADWAY_").lower() for key in ours} <= fields
    scaled = AutoscalerConfig.model_fields["scaled_by_role"].get_default(call_default_factory=True)
    assert set(scaled.values()) == set(SCALED)
    command = shlex.split(environment["HEADWAY_COMPOSE_COMMAND"])
    files = [each.removeprefix("${PWD}/") for each in command if each.endswith(".yaml")]
    assert files == ["compose.yaml", "deploy/compose.autoscale.yaml"]
