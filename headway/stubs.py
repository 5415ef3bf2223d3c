"""The gRPC stubs, for clients: ``from headway.stubs import gateway_pb2, gateway_pb2_grpc``.

They are generated from ``protos/*.proto`` (package ``headway.v1``), one module a name.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parents[1]
ROOMS = str(_HERE / "headway_rooms" if (_HERE / "headway_rooms").is_dir() else _HERE)
"""The folder of the packages that are ours and stand beside ``headway``."""


def __getattr__(name: str) -> Any:
    """Import a module of stubs by its name; AttributeError if there is none.

    This process's path is left as it was.
    """
    if not name.endswith(("_pb2", "_pb2_grpc")):
        raise AttributeError(f"headway.stubs has no {name}: it holds modules such as gateway_pb2")
    sys.path.insert(0, ROOMS)
    try:
        return importlib.import_module(f"protos.{name}")
    finally:
        sys.path.remove(ROOMS)
