"""The Triton kernels compile for a GPU; what they compute is tested beside this."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

MAX_SHARED_BYTES = 227 * 1024  # a Hopper program's


@pytest.mark.skipif(platform.machine() != "x86_64", reason="Triton's ptxas is that machine's")
def test_kernels_compile_for_hopper_within_its_shared_memory_and_registers(tmp_path: Path) -> None:
    # In a process of its own: in this one kernels are interpreted.
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    output = subprocess.run(
        [sys.executable, "-m", "tests.services.worker.kernel_builds"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert output.returncode == 0, output.stderr[-4000:]
    for built in map(json.loads, output.stdout.splitlines()):
        assert built["shared"] <= MAX_SHARED_BYTES, built
        # float32 prefill is for comparisons, not for speed: it may spill.
        assert built["stack"] == 0 or built["dtype"] == "fp32", built
