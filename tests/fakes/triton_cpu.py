"""A pytest plug-in: vLLM's model runner V2 on a CPU, its kernels run by Triton's interpreter.

``pytest -p tests.fakes.triton_cpu`` imports it before vLLM. vLLM takes V2 where Triton is, and on a
CPU that is where Triton has a backend for it. A stand-in is enough: the interpreter needs none.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"
os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"

try:
    from triton.backends import backends
except ImportError:  # vLLM's tests are skipped
    backends = {}
_found: dict[str, Any] = backends
_found.setdefault(
    "cpu", SimpleNamespace(compiler=None, driver=SimpleNamespace(is_active=lambda: True))
)
