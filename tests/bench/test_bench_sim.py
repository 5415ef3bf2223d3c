"""``headway bench sim``: figures come with the load that they are of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli import main

SHORT = ("bench", "sim", "--seconds", "2", "--rate", "10", "--preset", "star", "--decode", "3")


def test_figures_come_with_their_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    assert main([*SHORT, "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "star, 2 prefill and 3 decode instances of llama-8b-a100" in shown
    assert "10 requests/s for 2 s, seed 0; medians of 512 and 200 tokens" in shown
    found = json.loads(file.read_text())
    load = found["load"]
    assert (load["preset"], load["prefill"], load["decode"]) == ("star", 2, 3)
    assert (load["rate"], load["seconds"], load["fidelity"]) == (10.0, 2.0, "cores")
    assert found["num_requests"] > 0
