"""A dry run of the card's step over vLLM: its own scheduler and Headway's plans on one engine."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bench.gpu import main

pytest.importorskip("vllm", reason="vLLM is not installed in this environment: make test-vllm")

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]


def test_the_step_compares_answers_moves_kv_and_times_passes(tmp_path: Path) -> None:
    file = tmp_path / "card.json"
    given = ["--shape", "tiny", "--device", "cpu", "--folder", str(tmp_path)]
    assert main(["vllm", *given, "--json", str(file), "--minutes", "25"]) == 0
    found = json.loads(file.read_text())
    assert found["vllm"]["keeps_drawn_tokens"] is (
        os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1"
    )
    answers = found["answers"]
    assert answers["equal_in_turn"] == answers["equal_ahead"] == answers["answers"] == 8
    assert found["kv"] == {
        "kv_layout": "tokens",
        "equal_after_move": True,
        "equal_after_swap": True,
    }
    for row in found["decode_seconds_per_pass"]:
        assert min(row["stock"], row["in_turn"], row["ahead"]) > 0
