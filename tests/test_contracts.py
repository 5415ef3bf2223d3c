"""The import contracts of pyproject.toml name every module that they should; the plug-in's."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import get_args

from headway import messages
from protos import scheduler_pb2, worker_pb2

ROOT = Path(__file__).resolve().parents[1]
LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
ROOMS = set(LINTER["root_packages"])
BATCHES = {"GatewayBatch", "SchedulerBatch"}
IN_NO_LAYER = {"headway.core"}  # a folder of layers
PLUG_IN = ROOT / "engines" / "vllm" / "headway_vllm"
INSIDE_A_PLAIN_VLLM = ("scheduler", "hints")
"""What vLLM itself is given by name, where no service of Headway is installed as one."""


def test_every_module_of_headway_has_its_layer() -> None:
    (layers,) = (each["layers"] for each in LINTER["contracts"] if each["name"] == "One way down")
    named = {name.strip() for layer in layers for name in layer.split("|")}
    found = {
        f"{folder}.{path.stem}".replace("/", ".")
        for folder in ("headway", "headway/core")
        for path in (ROOT / folder).iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
        if path.stem != "__init__"
    }
    assert found - named - IN_NO_LAYER == set()


def _imported(module: str) -> set[str]:
    """Return the modules that one of the plug-in imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse((PLUG_IN / f"{module}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == PLUG_IN.name:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
    return found


def _below(module: str) -> set[str]:
    """Return all modules that one of the plug-in needs; its own with the package's name."""
    found, left = set[str](), [module]
    while left:
        new = _imported(left.pop()) - found
        found |= new
        left += [each.rpartition(".")[2] for each in new if each.startswith(f"{PLUG_IN.name}.")]
    return found


def test_the_plug_in_has_no_circle_and_knows_the_worker_and_the_runtime_alone() -> None:
    for path in PLUG_IN.glob("*.py"):
        needed = _below(path.stem)
        assert f"{PLUG_IN.name}.{path.stem}" not in needed
        ours = {each for each in needed if each.partition(".")[0] in ROOMS - {"headway"}}
        if path.stem in INSIDE_A_PLAIN_VLLM:
            assert ours == set()
        assert all(each.startswith(("services.worker", "services.runtime")) for each in ours)


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
