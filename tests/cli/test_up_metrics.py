"""``headway up --metrics-port``: who shows metrics where, and how Prometheus finds them."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import yaml

from headway.errors import HeadwayError
from services.local.process_spec import ProcessSpec
from services.local.prometheus import address_of, beside, in_order, targets, write_targets
from services.local.store import free_port
from tests.fakes.compose_files import COMPOSE, OVER

ROOT = Path(__file__).resolve().parents[2]
GATEWAY, WORKER = (
    ProcessSpec("gateway", "gateway"),
    ProcessSpec("worker", "decode-1", role="decode"),
)


def test_those_that_are_started_together_have_ports_in_order() -> None:
    listed = in_order([GATEWAY, WORKER], 9100)
    assert [address_of(spec) for spec in listed] == ["127.0.0.1:9100", "127.0.0.1:9101"]
    assert in_order([GATEWAY], 0) == [GATEWAY]


def test_one_that_comes_later_has_the_first_port_that_nobody_has() -> None:
    port = free_port(4)
    others = in_order([GATEWAY, WORKER], port)
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind(("127.0.0.1", port + 2))
        stranger.listen()
        later = beside(ProcessSpec("worker", "decode-2"), others, port)
    assert address_of(later) == f"127.0.0.1:{port + 3}"
    again = beside(ProcessSpec("worker", "decode-2"), others[:1], port)
    assert address_of(again) == f"127.0.0.1:{port + 1}"  # of the one that has gone
    assert address_of(beside(WORKER, others, 0)) == ""


def test_one_that_stood_by_goes_on_listening_where_it_does() -> None:
    (listed,) = in_order([ProcessSpec("worker", "standby-1")], 9100)
    told = beside(ProcessSpec("worker", "standby-1", role="prefill"), [listed], 9100)
    assert address_of(told) == address_of(listed)


def test_without_a_port_that_is_free_the_way_out_is_named() -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 65_535))
        stranger.listen()
        with pytest.raises(HeadwayError, match="choose another --metrics-port"):
            beside(WORKER, [], 65_535)


def test_prometheus_reads_who_is_there_and_what_they_are(tmp_path: Path) -> None:
    specs = in_order([GATEWAY, WORKER], 9100)
    path = tmp_path / "prometheus.json"
    write_targets(path, [*specs, ProcessSpec("store", "store")])
    assert json.loads(path.read_text()) == targets(specs)
    labels = {"service": "worker", "service_id": "decode-1", "role": "decode"}
    assert targets(specs)[1] == {"targets": ["127.0.0.1:9101"], "labels": labels}


def test_its_configuration_names_the_file_and_every_service_of_compose() -> None:
    said = yaml.safe_load((ROOT / "deploy" / "prometheus.yaml").read_text())
    jobs = {job["job_name"]: job for job in said["scrape_configs"]}
    assert jobs["headway-up"]["file_sd_configs"][0]["files"] == ["../run/prometheus.json"]
    (found,) = jobs["headway-compose"]["dns_sd_configs"]
    services = {**COMPOSE["services"], **OVER["services"]}
    served = services.keys() - {"redis", "certs"}
    ours = {name for name in served if not name.startswith("gpu-")}
    assert set(found["names"]) == ours
    for name in COMPOSE["services"].keys() & ours:
        listens = COMPOSE["services"][name]["environment"]["HEADWAY_METRICS_LISTEN"]
        assert listens.rpartition(":")[2] == str(found["port"])
