"""Grafana's board and Prometheus' rules name what the services measure."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from headway.core.scheduler.core import SchedulerCore
from services.runtime.telemetry import ServiceMetrics
from services.scheduler.metrics import _POOL_GAUGES, SchedulerMetrics
from services.worker.metrics import WorkerMetrics
from tests.fakes.compose_files import ROOT
from tests.fakes.gateway_harness import Cluster
from tests.fakes.worker_core import CoreTotals

COMPOSE = ROOT / "deploy" / "compose.observe.yaml"
FOLDER = ROOT / "deploy" / "observe"
RULES = yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"][0]["rules"]
PANELS = json.loads((FOLDER / "headway-board.json").read_text())["panels"]


def families(registries: Iterable[CollectorRegistry]) -> set[str]:
    """Return the names of all samples that these registries may show."""
    names: set[str] = set()
    for registry in registries:
        for family in registry.collect():
            ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
            names |= {family.name + end for end in ends.get(family.type, ("",))}
    return names


async def test_every_metric_of_the_board_and_the_rules_is_there(running: Cluster) -> None:
    others = CollectorRegistry()
    ServiceMetrics(others, "worker", "w")
    SchedulerMetrics(SchedulerCore().status, others)
    WorkerMetrics(others, CoreTotals(), "m", 64, 16)
    known = families((others, running.service.metrics.registry))
    known |= {f"headway_scheduler_{name}" for name, _, _ in _POOL_GAUGES}
    expressions = [rule["expr"] for rule in RULES]
    expressions += [target["expr"] for panel in PANELS for target in panel["targets"]]
    named = {name for each in expressions for name in re.findall(r"headway_\w+", each)}
    assert len(named) > 15
    assert named - known == set()


def test_every_alert_says_how_bad_it_is_and_where_to_look() -> None:
    for rule in RULES:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "look"}


def test_compose_mounts_files_that_exist_for_one_profile_and_publishes_to_loopback() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*command, str(COMPOSE)], check=True, capture_output=True)
    for spec in yaml.safe_load(COMPOSE.read_text())["services"].values():
        assert spec["profiles"] == ["observe"]
        assert all(port.startswith("127.0.0.1:") for port in spec["ports"])
        for volume in spec["volumes"]:
            assert (ROOT / volume.partition(":")[0]).is_file()


def test_the_board_s_panels_have_places_of_their_own() -> None:
    assert len({(p["gridPos"]["x"], p["gridPos"]["y"]) for p in PANELS}) == len(PANELS)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus)")
def test_promtool_has_no_complaint(tmp_path: Path) -> None:
    rules = FOLDER / "rules.yaml"
    mounted = (FOLDER / "prometheus.yaml").read_text("utf-8")
    config = tmp_path / "prometheus.yaml"
    config.write_text(mounted.replace("/etc/prometheus/rules.yaml", str(rules)))
    for what, path in (("rules", rules), ("config", config)):
        done = subprocess.run(
            ["promtool", "check", what, str(path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
