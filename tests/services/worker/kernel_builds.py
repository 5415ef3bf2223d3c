"""Compiles the kernels for a Hopper GPU, which needs no GPU, and prints what they take.

    python -m tests.services.worker.kernel_builds

One JSON object per line: kernel, dtype, size, shared memory in bytes, stack bytes a thread.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from services.worker.engine.kernels import decode, mlp, norm, plan, prefill, store
from services.worker.engine.kernels.attend import Tile, padded_size

HOPPER = GPUTarget("cuda", 90, 32)
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
ITEMSIZE = {"bf16": 2, "fp16": 2, "fp32": 4}
INDICES = ("tables", "table", "lengths", "owners", "begins", "ends", "firsts")
FLOATS = ("partial", "weights", "cos", "sin")
INTEGERS = ("requests", "parts", "wanted", "width", "table_stride", "angle_stride")


def build(kernel: Any, dtype: str, shape: Tile | None, /, **constants: Any) -> dict[str, Any]:
    """Compile with these constants; what a parameter is follows from its name."""
    names = kernel.arg_names
    types = {name: "constexpr" if name in constants else _type(name, dtype) for name in names}
    pointers = [n for n, name in enumerate(names) if types[name].startswith("*")]
    source = ASTSource(
        kernel,
        types,
        {(names.index(name),): value for name, value in constants.items()},
        {(n,): [["tt.divisibility", 16]] for n in pointers},
    )
    options = {"num_warps": shape.warps, "num_stages": shape.stages} if shape else {}
    compiled = triton.compile(source, target=HOPPER, options=options)
    name = f"{kernel.__module__.rpartition('.')[2]}.{kernel.__name__}"
    stack = _stack_bytes(compiled.asm["cubin"])
    return {"kernel": name, "dtype": dtype, "shared": compiled.metadata.shared, "stack": stack}


def _type(name: str, dtype: str) -> str:
    if name in ("scale", "eps"):
        return "fp32"
    if name in INTEGERS:
        return "i32"
    if name in INDICES:
        return "*i32"
    if name == "slots":
        return "*i64"
    return "*fp32" if name in FLOATS else f"*{dtype}"


def _stack_bytes(cubin: bytes) -> int:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(CUOBJDUMP), "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"STACK:(\d+)", usage)
    assert found, usage
    return int(found[1])


def attention(dtype: str, size: int, grouped: int) -> Iterator[dict[str, Any]]:
    """Both attention kernels for one shape of model."""
    padded = padded_size(size)
    heads: Mapping[str, int] = {
        "num_heads": 8 * grouped,
        "num_kv_heads": 8,
        "block_size": 16,
        "size": size,
        "padded": padded,
    }
    tile = decode.decode_tile(grouped, padded, ITEMSIZE[dtype])
    yield build(decode._attend, dtype, tile, **heads, rows=tile.rows, tile=tile.tokens)
    tile = prefill.prefill_tile(padded, ITEMSIZE[dtype])
    sizes = {"rows": tile.rows, "tile": tile.tokens, "width": 16}
    yield build(prefill._attend, dtype, tile, **heads, **sizes)


def builds() -> Iterator[dict[str, Any]]:
    for dtype, size, grouped in (
        ("bf16", 128, 4),
        ("bf16", 64, 8),
        ("bf16", 256, 2),
        ("fp16", 80, 1),
        ("fp16", 96, 7),
        ("fp32", 128, 4),
    ):
        yield from ({**built, "size": size} for built in attention(dtype, size, grouped))
    yield build(decode._merge, "bf16", None, size=128, padded=128, tile=decode.PARTS_A_STEP)
    yield build(plan._plan, "bf16", None, least=128, width=256, tile=plan.PARTS_A_PROGRAM)
    heads = {"num_heads": 32, "num_kv_heads": 8, "half": 64, "padded": 64}
    yield build(store._rope_store, "bf16", None, **heads, normed=True, tile=store.HEADS_A_PROGRAM)
    yield build(norm._norm, "bf16", Tile(1, 1, 8, 3), padded=4096, added=True)
    yield build(mlp._silu_mul, "bf16", None, tile=mlp.TILE)


if __name__ == "__main__":
    for line in builds():
        sys.stdout.write(json.dumps(line) + "\n")
