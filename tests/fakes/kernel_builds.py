"""Builds the kernels for a Hopper GPU as their callers launch them, which needs no GPU.

    python -m tests.fakes.kernel_builds

A JSON object per launch: kernel, dtype, a digest of the program, its shared memory and the bytes
of its stack, which are registers that did not fit.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from services.worker.engine.gpu.decode import decode_attention
from services.worker.engine.gpu.mlp import silu_mul
from services.worker.engine.gpu.norm import add_rms_norm, rms_norm
from services.worker.engine.gpu.plan import plan_decode
from services.worker.engine.gpu.prefill import prefill_attention
from services.worker.engine.gpu.store import rope_store

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
SHAPES = (
    (torch.bfloat16, 128, 4),
    (torch.bfloat16, 64, 8),
    (torch.bfloat16, 256, 2),
    (torch.float16, 80, 1),
    (torch.float16, 96, 7),
    (torch.float32, 128, 4),
)


class HopperDriver:
    """Says what a driver would of a GPU that is not there."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0


def build_instead_of_launching(labels: dict[str, object]) -> None:
    """From here on a launch compiles for its arguments and prints what was built."""

    def instead(kernel: Any, grid: object) -> Callable[..., None]:
        def launch(*args: object, **settings: object) -> None:
            built = kernel.warmup(*args, grid=grid, **settings)
            found = {
                "kernel": f"{kernel.__module__.rpartition('.')[2]}.{kernel.__name__}",
                "digest": built.hash,
                "shared": built.metadata.shared,
                "stack": stack_bytes(built.asm["cubin"]),
            }
            sys.stdout.write(json.dumps(labels | found) + "\n")

        return launch

    triton.runtime.driver.set_active(HopperDriver())
    JITFunction.__getitem__ = instead


@cache
def stack_bytes(cubin: bytes) -> int:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(CUOBJDUMP), "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"STACK:(\d+)", usage)
    assert found, usage
    return int(found[1])


def launch_attention(
    dtype: torch.dtype, size: int, grouped: int, num_requests: int, block_size: int
) -> None:
    """Decodes and prompts of a model with 8 KV heads; the prompts' tensors lie behind decodes'."""
    heads = 8 * grouped
    query = torch.zeros(2 * num_requests, heads, size, dtype=dtype)
    pool = torch.zeros(2, 64, 8, size, dtype=dtype)
    tables = torch.zeros(2 * num_requests, 3, dtype=torch.int32)
    lengths = torch.ones(2 * num_requests, dtype=torch.int32)
    firsts = torch.arange(num_requests + 1, dtype=torch.int32)
    settings: dict[str, Any] = {"block_size": block_size, "scale": size**-0.5}
    first, second = slice(num_requests), slice(num_requests, None)
    plan = plan_decode(lengths[first], heads, 8, size, num_processors=132)
    decode_attention(
        query[first], pool[0], pool[1], tables[first], lengths[first], plan, **settings
    )
    prefill_attention(
        query[second], pool[0], pool[1], tables[second], firsts, lengths[second], **settings
    )


def launch_rest(dtype: torch.dtype, num_rows: int) -> None:
    """A layer of Llama 3.1 8B but for its attention, and of Qwen3's kind."""
    weight, hidden = torch.zeros(4096, dtype=dtype), torch.zeros(num_rows, 4096, dtype=dtype)
    rms_norm(hidden, weight, 1e-5)
    add_rms_norm(hidden, hidden, weight, 1e-5)
    silu_mul(torch.zeros(num_rows, 2 * 14336, dtype=dtype))
    pool = torch.zeros(2, 64, 8, 128, dtype=dtype)
    angles, slots = torch.zeros(2, num_rows, 64, dtype=dtype), torch.zeros(num_rows).long()
    for norms in (None, (weight[:128], weight[128:256])):
        qkv = torch.zeros(num_rows, 48 * 128, dtype=dtype)
        rope_store(qkv, angles[0], angles[1], pool[0], pool[1], slots, num_heads=32, norms=norms)


def main() -> None:
    """Several batch sizes of one shape, and other shapes."""
    for dtype, size, grouped in SHAPES:
        own = dtype is torch.bfloat16 and size == 128
        for num_requests in (1, 16, 3) if own else (1,):
            labels = {
                "dtype": str(dtype).removeprefix("torch."),
                "size": size,
                "requests": num_requests,
            }
            build_instead_of_launching(labels)
            for block_size in (64, 16) if own else (64,):
                launch_attention(dtype, size, grouped, num_requests, block_size)
            if own:
                launch_rest(dtype, num_requests)


if __name__ == "__main__":
    main()
