"""``headway bench engine``: what the engines' processes are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.engine import run
from services.runtime.rooms import ROOMS


def test_vllm_does_not_inherit_our_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = run.EnginePlan("m", "float32", (1,), 8, 8, 2, ("vllm",), Path("run"), False)
    monkeypatch.setenv("PYTHONPATH", str(ROOMS))
    assert "PYTHONPATH" not in run._environment("vllm", plan)
    assert str(ROOMS) in run._environment("generate", plan)["PYTHONPATH"]
    assert run._environment("vllm", plan)["OMP_NUM_THREADS"] == "2"


def test_vllm_under_headways_core_is_left_out_where_it_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = run.EnginePlan("m", "float32", (1,), 8, 8, 2, (), Path("run"), False)
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    for name in ("headway-vllm", "vllm-core"):
        assert "docs/engines.md" in run._program(name, plan, print)[1]
    assert run._program("generate", plan, print)[1] == ""
