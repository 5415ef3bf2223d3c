"""The wheels work in an environment of their own, in a folder where nothing of the sources is."""

from __future__ import annotations

import re
import signal
import subprocess
import sysconfig
import time
import tomllib
import zipfile
from pathlib import Path

import httpx
import pytest

from services.local.store import free_port
from tests.fakes.wheels import ROOT, VLLM, Installed, build_wheel, install

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PATIENCE = 180.0
STUBS = """
from headway.stubs import gateway_pb2, gateway_pb2_grpc
assert gateway_pb2.GenerateRequest(model="m").model == "m" and gateway_pb2_grpc.GatewayStub
import sys
assert not any("headway_rooms" in folder for folder in sys.path)
"""
NAMES = """
from importlib.util import find_spec
ours = ("headway", "headway_launch", "headway_vllm")
rooms = ("services", "results", "bench", "studies", "planning", "proof", "cli", "protos", "models")
print(*(name for name in (*ours, *rooms, "tests", "engines") if find_spec(name)))
"""
ORDERED = """
import os
os.environ["HEADWAY_VLLM"] = '{"batching": "uniboost"}'
from headway_vllm.hints import Hints
from headway_vllm.settings import read_settings
order = read_settings().order()
for name, length in (("long", 5000), ("short", 5)):
    order.came(name, [1] * length, 10, Hints(), 100.0, now=101.0)
print(*sorted(("long", "short"), key=order.place_of))
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Headway's, and that of its package for vLLM."""
    headway, vllm = (build_wheel(p, tmp_path_factory.mktemp("wheel")) for p in (ROOT, VLLM))
    return headway, vllm


@pytest.fixture(scope="module")
def installed(wheels: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(tmp_path_factory.mktemp("installed"), *map(str, wheels))


def shown(code: Path) -> set[str]:
    names = {name.split("/")[0] for name in zipfile.ZipFile(code).namelist()}
    return {name for name in names if not name.endswith(".dist-info")}


def test_the_wheels_put_only_names_of_ours_into_site_packages(wheels: tuple[Path, Path]) -> None:
    assert [shown(wheel) for wheel in wheels] == [
        {"headway", "headway_launch.py", "headway_rooms"},
        {"headway_vllm"},
    ]


def test_every_room_of_the_checkout_is_in_the_wheel_file_by_file(wheels: tuple[Path, Path]) -> None:
    there = {name.removeprefix("headway_rooms/") for name in zipfile.ZipFile(wheels[0]).namelist()}
    rooms = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    for room in rooms["root_packages"]:
        files = {str(path.relative_to(ROOT)) for path in (ROOT / room).rglob("*.py")}
        assert files
        assert files <= there


def test_an_editable_install_shows_the_names_that_the_wheel_does(tmp_path: Path) -> None:
    editable = install(tmp_path, "-e", str(ROOT), "-e", str(VLLM))
    assert editable.run("headway", "--version") == "headway 0.1.0\n"
    assert editable.run("python", "-c", NAMES) == "headway headway_launch headway_vllm\n"


def test_the_plug_in_orders_requests_by_a_policy(installed: Installed) -> None:
    """Without vLLM: with it, ``tests/with_vllm/test_vllm_wheel.py``."""
    assert installed.run("python", "-c", NAMES) == "headway headway_launch headway_vllm\n"
    assert installed.run("python", "-c", ORDERED) == "short long\n"


def test_nothing_of_the_checkout_is_on_its_path(installed: Installed) -> None:
    code = "import headway, headway_launch, sys; print(headway.__file__, *sys.path)"
    said = installed.run("python", "-c", code)
    assert str(ROOT) not in said.replace(sysconfig.get_path("purelib"), "")
    assert installed.run("headway", "--version") == "headway 0.1.0\n"


def test_a_client_imports_the_stubs_and_its_path_stays_as_it_was(installed: Installed) -> None:
    installed.run("python", "-c", STUBS)


def test_every_command_shows_its_help(installed: Installed) -> None:
    waiting: list[tuple[str, ...]] = [()]
    seen = []
    while waiting:
        command = waiting.pop()
        said = installed.run("headway", *command, "--help")
        seen.append(command)
        table = re.search(r"^positional arguments:\n  [A-Z]+\n((?:    .*\n)+)", said, re.MULTILINE)
        found = re.findall(r"^    ([a-z][a-z-]*)", table.group(1), re.MULTILINE) if table else []
        waiting += [(*command, name) for name in found]
    assert {("up",), ("bench", "engine"), ("bench", "gateway"), ("profile", "run")} < set(seen)
    for name in ("gateway", "scheduler", "worker", "predictor", "autoscaler"):
        assert "--service-id" in installed.run("headway", "service", name, "--help")


def test_the_simulator_and_a_bench_run(installed: Installed) -> None:
    said = installed.run("headway", "simulate", "chat-and-reasoning", "--preset", "headway")
    assert "headway" in said
    assert "num_requests" in installed.run("headway", "bench", "sim", "--seconds", "20")
    installed.run("headway", "bench", "policies", "--repeats", "1")


def test_up_serves_the_small_model(installed: Installed) -> None:
    port = free_port(2)
    (installed.folder / "services").mkdir()  # a user's own
    (installed.folder / "services" / "__init__.py").write_text("raise RuntimeError('not ours')\n")
    command = [str(installed.bin / "headway"), "up", "--port", str(port)]
    up = subprocess.Popen(command, cwd=installed.folder, env=installed.environ, text=True)
    try:
        assert answer(port, up).strip() == "3, 5, 9"
    finally:
        up.send_signal(signal.SIGTERM)
        assert up.wait(60) == 0


def answer(port: int, up: subprocess.Popen[str]) -> str:
    """Ask once; until the cluster serves, ask again."""
    messages = [{"role": "user", "content": "Sort 5, 3, 9."}]
    body = {"model": "headway-mini", "messages": messages, "temperature": 0}
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            reply = httpx.post(url, json=body, timeout=60)
            if reply.status_code == 200:
                content: str = reply.json()["choices"][0]["message"]["content"]
                return content
        except httpx.TransportError:
            pass
        assert up.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)
