"""``python -m protos.generate [FOLDER]``: the stubs beside the protos (or under FOLDER)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent


def generate(folder: Path) -> None:
    """Write the Python stubs and their types for every proto under ``folder``."""
    plugins = str(Path(sys.executable).parent)  # protoc-gen-mypy stands beside the interpreter
    os.environ["PATH"] = os.pathsep.join([plugins, os.environ.get("PATH", "")])
    protos = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "protos").glob("*.proto"))
    outs = [f"--{kind}_out={folder}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    status = protoc.main(["protoc", f"-I{ROOT}", *outs, *protos])
    if status:
        raise SystemExit(f"protoc ended with {status}")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
