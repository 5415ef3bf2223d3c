"""``headway policies`` lists what flags can name."""

from __future__ import annotations

import pytest

from cli import main
from headway.policies.registry import REGISTRY
from headway.presets import PRESETS


def test_every_policy_is_listed_with_its_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policies", "--parameters"]) == 0
    lines = capsys.readouterr().out.splitlines()
    named = {tuple(line.split()[:2]) for line in lines if not line.startswith(" ")}
    assert named == {(q, name) for q, answers in REGISTRY.items() for name in answers}


def test_every_preset_is_listed_with_its_policies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policies", "--presets"]) == 0
    text = capsys.readouterr().out
    for name, preset in PRESETS.items():
        assert f"\n{name} " in f"\n{text}"
        assert preset.description in text
    assert "batching      pascal\n" in text
    assert "packing       pbaa (order='readers')" in text
