"""``--json`` and ``--plots``: what cannot be written is refused before any work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli import main
from headway.errors import HeadwayError
from results.output import refuse_unwritable, write_json


@pytest.mark.parametrize(
    "command",
    [
        ("simulate", "chat-and-reasoning"),
        ("reproduce", "uniboost"),
        ("profile", "check", "--matrix", "--profile", "mine.toml"),
        ("demo",),
        ("bench", "sim"),
        ("bench", "policies"),
        ("bench", "takeover"),
        ("bench", "cpu"),
        ("bench", "engine"),
        ("bench", "gateway"),
        ("bench", "burst", "--profile", "llama-8b-a100"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_in_one_sentence_at_once(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "no" / "such" / "folder.json"
    assert main([*command, "--json", str(file)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert f"cannot write {file}" in said.err


def test_a_file_is_left_as_it_is_until_there_is_something_to_write(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    write_json(old, {"a": 1})
    refuse_unwritable(old)
    refuse_unwritable(new)
    assert json.loads(old.read_text()) == {"a": 1}
    assert not new.exists()
    with pytest.raises(HeadwayError, match="Is a directory"):
        refuse_unwritable(tmp_path)
