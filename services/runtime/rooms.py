"""Headway's own folders: the packages for child processes, and the models we ship."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOMS = Path(__file__).resolve().parents[2]
SHIPPED_MODEL = "headway-mini"


def module_command(module: str, *flags: str) -> list[str]:
    """Return the command that runs one of our modules; run it in ``child_environment()``.

    ``-P`` keeps the working directory off the path: a folder there may be called ``services``.
    """
    return [sys.executable, "-P", "-m", module, *flags]


def child_environment() -> dict[str, str]:
    """Return this process's environment with our packages first on Python's path."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = [str(ROOMS), *(folder for folder in inherited if folder not in ("", str(ROOMS)))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}


def model_folder(model: str) -> str:
    """Return the folder of a model that we ship, if ``model`` names one; else ``model`` itself.

    An empty name is the small model's. A folder of that name in the working directory wins.
    """
    shipped = ROOMS / "models" / (model or SHIPPED_MODEL)
    is_shipped = "/" not in model and (shipped / "config.json").is_file()
    return str(shipped) if is_shipped and not (model and Path(model).is_dir()) else model
