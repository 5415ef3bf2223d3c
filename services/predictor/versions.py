"""Trained predictors on disk: a folder per model with a folder per version (``v0001`` …).

A version is complete once it has a ``config.json``, which is written last.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from headway.errors import Code, HeadwayError
from services.predictor.network import LengthNetwork, NetworkShape
from services.runtime.failpoints import failpoint

_VERSION = re.compile(r"v(\d{4,})")
CONFIG, WEIGHTS = "config.json", "model.safetensors"


@dataclass(frozen=True, slots=True)
class LoadedPredictor:
    """One loaded version.

    ``weight``: of a prediction against the request's earlier ones, over 0 to 1.
    """

    version: str
    network: LengthNetwork
    about: Mapping[str, Any]
    weight: float = 1.0


def newest_version(folder: Path) -> str:
    """Return the newest complete version in a model's folder, "" if there is none."""
    versions = [
        (int(match.group(1)), path.name)
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := _VERSION.fullmatch(path.name)) and (path / CONFIG).is_file()
    ]
    return max(versions, default=(0, ""))[1]


def next_version(folder: Path) -> str:
    """Return the name of the next version to write."""
    newest = newest_version(folder)
    return f"v{(int(newest[1:]) if newest else 0) + 1:04d}"


def save_version(folder: Path, network: LengthNetwork, about: Mapping[str, Any]) -> Path:
    """Write a new version; return its folder."""
    version = next_version(folder)
    path = folder / version
    path.mkdir(parents=True, exist_ok=True)
    weights = {name: each.contiguous() for name, each in network.state_dict().items()}
    save_file(weights, path / WEIGHTS)
    (path / WEIGHTS).chmod(0o644)  # a service of another user may be the reader
    shape = network.shape
    config = {"width": shape.width, "layers": list(shape.layers), "counts": shape.counts, **about}
    failpoint("predictor.version.saved")
    partial = path / f"{CONFIG}.partial"
    partial.write_text(json.dumps(config, indent=2) + "\n")
    partial.replace(path / CONFIG)
    return path


def load_version(folder: Path, version: str = "") -> LoadedPredictor:
    """Load a version, by default the newest; NOT_FOUND if it is missing or incomplete."""
    version = version or newest_version(folder)
    path = folder / version
    try:
        if not version:
            raise FileNotFoundError("it has no version yet")
        about = json.loads((path / CONFIG).read_text())
        layers, counts = tuple(about["layers"]), bool(about.get("counts", False))
        network = LengthNetwork(NetworkShape(about["width"], layers, counts))
        network.load_state_dict(load_file(path / WEIGHTS))
        weight = float(about.get("weight", 1.0))
        if not 0 < weight <= 1:
            raise ValueError(f"its weight is {weight}; it must be over 0 to 1")
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        message = f"{path} holds no predictor (headway predictor train): {error}"
        raise HeadwayError(Code.NOT_FOUND, message, param="predictors") from error
    return LoadedPredictor(version, network.eval(), about, weight)
