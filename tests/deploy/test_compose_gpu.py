"""deploy/compose.gpu.yaml puts a GPU's workers in the place of the CPU's."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import yaml

from tests.fakes.compose_files import COMPOSE, ROOT

PATH = ROOT / "deploy" / "compose.gpu.yaml"
GPU: dict[str, Any] = yaml.safe_load(PATH.read_text())


def started(profiles: set[str], *files: dict[str, Any]) -> dict[str, str]:
    """Return the roles of the workers that compose starts with these files and profiles."""
    asked: dict[str, list[str]] = {}
    for file in files:
        for name, spec in file["services"].items():
            asked[name] = [*asked.get(name, []), *spec.get("profiles", [])]
    workers = {
        name: spec["environment"]["HEADWAY_ROLE"]
        for name, spec in COMPOSE["services"].items()
        if spec.get("command", [""])[-1] == "services.worker"
    }
    return {
        name: role
        for name, role in workers.items()
        if not asked[name] or profiles & set(asked[name])
    }


def test_the_file_follows_the_compose_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*command, str(PATH)], check=True, capture_output=True)


def test_a_gpus_workers_start_alone_and_without_the_file_the_cpus_do() -> None:
    alone = started({"gpu"}, COMPOSE, GPU)
    assert alone == {"gpu-prefill": "prefill", "gpu-decode": "decode"}
    assert set(started(set(), COMPOSE)) == {"prefill-1", "prefill-2", "decode-1", "decode-2"}


def test_the_autoscaler_counts_the_workers_that_start() -> None:
    roles = list(started({"gpu"}, COMPOSE, GPU).values())
    environment = GPU["services"]["autoscaler"]["environment"]
    for role in ("prefill", "decode"):
        assert int(environment[f"HEADWAY_NUM_{role.upper()}"]) == roles.count(role)


def test_workers_on_one_gpu_share_its_memory() -> None:
    specs = [COMPOSE["services"][name] for name in started({"gpu"}, COMPOSE, GPU)]
    shares = [float(spec["environment"]["HEADWAY_GPU_SHARE"]) for spec in specs]
    assert sum(shares) <= 1.0


def test_the_image_keeps_a_gpus_compiled_kernels_where_it_may_write() -> None:
    assert "TRITON_CACHE_DIR=/tmp/triton" in (ROOT / "Dockerfile").read_text()
    assert COMPOSE["services"]["gpu-decode"]["tmpfs"] == ["/tmp:exec"]
