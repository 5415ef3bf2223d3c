"""The import contracts of pyproject.toml name every module that they should."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import get_args

from headway import messages
from protos import scheduler_pb2, worker_pb2

ROOT = Path(__file__).resolve().parents[1]
BATCHES = {"GatewayBatch", "SchedulerBatch"}
IN_NO_LAYER = {"headway.core", "headway.stubs"}  # a folder of layers; what clients import


def test_every_module_of_headway_has_its_layer() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = pyproject["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each["name"] == "One way down")
    named = {name.strip() for layer in layers for name in layer.split("|")}
    found = {
        f"{folder}.{path.stem}".replace("/", ".")
        for folder in ("headway", "headway/core")
        for path in (ROOT / folder).iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
        if path.stem != "__init__"
    }
    assert found - named - IN_NO_LAYER == set()


def test_the_unions_of_messages_are_those_of_the_wire() -> None:
    for union, packed in (
        (messages.ToWorker, worker_pb2.SchedulerToWorker),
        (messages.FromWorker, worker_pb2.WorkerToScheduler),
        (messages.FromGateway, scheduler_pb2.GatewayMessage),
        (messages.ToGateway, scheduler_pb2.SchedulerMessage),
    ):
        body = packed.DESCRIPTOR.oneofs_by_name["body"].fields
        names = {str(field.message_type and field.message_type.name) for field in body}
        assert names - BATCHES == {each.__name__ for each in get_args(union)}
