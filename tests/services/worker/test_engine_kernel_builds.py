"""The Triton kernels compile for a GPU; what they compute is tested beside this."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("triton")
if platform.machine() != "x86_64":
    pytest.skip("Triton's assembler is that machine's", allow_module_level=True)

MAX_SHARED_BYTES = 227 * 1024  # a Hopper program's


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Of a process of its own: in this one kernels are interpreted."""
    folder = str(tmp_path_factory.mktemp("triton"))
    output = subprocess.run(
        [sys.executable, "-m", "tests.fakes.kernel_builds"],
        env=os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": folder},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert output.returncode == 0, output.stderr[-4000:]
    return [json.loads(line) for line in output.stdout.splitlines()]


def test_kernels_fit_hoppers_shared_memory_and_registers(builds: list[dict[str, Any]]) -> None:
    for built in builds:
        assert built["shared"] <= MAX_SHARED_BYTES, built
        # float32 is for comparisons, not for speed: it may spill.
        assert built["stack"] == 0 or built["dtype"] == "float32", built


def test_a_batch_of_another_size_compiles_nothing(builds: list[dict[str, Any]]) -> None:
    """Or a pass would wait seconds for it."""
    by_requests: dict[int, set[str]] = {}
    for built in builds:
        if built["size"] == 128 and built["dtype"] == "bfloat16":
            by_requests.setdefault(built["requests"], set()).add(built["digest"])
    assert len(by_requests) == 3
    assert by_requests[1] == by_requests[16] == by_requests[3]
