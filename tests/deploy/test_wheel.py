"""The wheel works in an environment of its own, in a folder where nothing of the sources is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import zipfile
from pathlib import Path

import httpx
import pytest

from services.local.store import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 180.0
STUBS = """
from headway.stubs import gateway_pb2, gateway_pb2_grpc
assert gateway_pb2.GenerateRequest(model="m").model == "m" and gateway_pb2_grpc.GatewayStub
import sys
assert not any("headway_rooms" in folder for folder in sys.path)
"""


class Installed:
    """An environment with the wheel in it, and an empty folder to work in."""

    def __init__(self, environment: Path, folder: Path) -> None:
        self.bin = environment / "bin"
        self.folder = folder
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}

    def run(self, program: str, *arguments: str) -> str:
        """Return what the program prints; it has to succeed."""
        done = subprocess.run(
            [str(self.bin / program), *arguments],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{program} {arguments}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    subprocess.run([*pip, "-w", str(folder), str(ROOT)], check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Dependencies come from this environment's folder; its ``.pth`` files are not read there."""
    environment = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    paths = {"base": str(environment), "platbase": str(environment)}
    packages = Path(sysconfig.get_path("purelib", "venv", paths))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--ignore-installed")
    python = str(environment / "bin" / "python")
    subprocess.run([*pip[:3], "--python", python, *pip[3:], str(wheel)], check=True)
    return Installed(environment, tmp_path_factory.mktemp("empty"))


def test_the_wheel_puts_only_names_of_ours_into_site_packages(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {
        "headway",
        "headway_launch.py",
        "headway_rooms",
    }


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
