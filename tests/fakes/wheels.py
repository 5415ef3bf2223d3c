"""Our wheels in an environment of their own, without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VLLM = ROOT / "engines" / "vllm"
_PIP = (sys.executable, "-m", "pip", "--quiet")


class Installed:
    """An environment with wheels in it, and an empty folder to work in."""

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


def build_wheel(project: Path, folder: Path) -> Path:
    """Build a project's wheel into an empty folder."""
    build = (*_PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(project))
    subprocess.run(build, check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


def install(folder: Path, *what: str) -> Installed:
    """Install wheels, or what else pip takes, into an environment below ``folder``.

    Dependencies come from this environment's folder; its ``.pth`` files are not read there.
    """
    environment, empty = folder / "environment", folder / "empty"
    empty.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    paths = {"base": str(environment), "platbase": str(environment)}
    packages = Path(sysconfig.get_path("purelib", "venv", paths))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = str(environment / "bin" / "python")
    options = ("--no-deps", "--no-build-isolation", "--ignore-installed")
    subprocess.run([*_PIP, "--python", python, "install", *options, *what], check=True)
    return Installed(environment, empty)
