"""The gRPC stubs, for clients: ``from headway.stubs import gateway_pb2, gateway_pb2_grpc``.

They are generated from ``protos/*.proto`` (package ``headway.v1``), one module a name.
"""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """Import a module of stubs by its name; AttributeError if there is none."""
    if not name.endswith(("_pb2", "_pb2_grpc")):
        raise AttributeError(f"headway.stubs has no {name}: it holds modules such as gateway_pb2")
    return importlib.import_module("headway_launch").load_stub(name)
