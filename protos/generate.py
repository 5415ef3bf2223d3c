"""``python -m protos.generate [FOLDER]``: the stubs beside the protos (or under FOLDER)."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
_EXPERIMENTAL = re.compile(
    r"\n\n # This class is part of an EXPERIMENTAL API\.\nclass .*?(?=\n\n\nclass |\Z)", re.DOTALL
)
"""Calls without a channel of one's own, behind each service's stubs: nobody makes them."""


def generate(folder: Path) -> None:
    """Write the Python stubs and their types for every proto under ``folder``."""
    plugins = str(Path(sys.executable).parent)  # protoc-gen-mypy stands beside the interpreter
    os.environ["PATH"] = os.pathsep.join([plugins, os.environ.get("PATH", "")])
    protos = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "protos").glob("*.proto"))
    outs = [f"--{kind}_out={folder}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    status = protoc.main(["protoc", f"-I{ROOT}", *outs, *protos])
    if status:
        raise SystemExit(f"protoc ended with {status}")
    for stubs in (folder / "protos").glob("*_pb2_grpc.py"):
        stubs.write_text(_EXPERIMENTAL.sub("", stubs.read_text()).rstrip("\n") + "\n")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
