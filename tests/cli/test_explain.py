"""``headway explain``, ``trace`` and ``top``: what is refused, and what an id means."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli import main
from headway.request import call_of, is_named

NOWHERE = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["explain", "r", "--what-if", "nonsense"], "vllm-like"),
        (["explain", "r", "--what-if", "headway,nonsense"], "'nonsense'"),
        (["explain", "r", "--profile", "nonsense"], "llama-8b-a100"),
        (["explain", "scaling", "--last", "-1"], "--last"),
        (["explain", "r", "--run", "no-such-folder"], "no-such-folder"),
        (["trace", "--out", "t.json", "--since", "nan"], "--since"),
        (["trace", "--out", "t.json", "--since", "inf"], "--since"),
        (["top", "--once", "--rows", "0"], "rows"),
        (["top", "--once", "--rows", "1000000"], "rows"),
    ],
)
def test_a_wrong_option_is_named_with_what_can_be_chosen(
    words: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    where = [] if "--run" in words else ["--url", NOWHERE]
    assert main([*words, *where]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_an_output_is_named_by_its_own_id_its_call_s_and_its_client_s() -> None:
    drawn, given = "chatcmpl-0123456789abcdef", "my-1~0123456789abcdef01234567"
    assert call_of(drawn) == drawn
    assert call_of(f"{drawn}-12") == drawn
    assert call_of(f"{given}-1") == given
    assert call_of("req-1") == "req-1"
    assert is_named(f"{given}-1", "my-1")
    assert is_named(f"{given}-1", given)
    assert is_named(f"{given}-1", "my-1~0123456789")
    assert not is_named(f"{given}-10", f"{given}-1")
    assert not is_named(f"{given}-1", "my")
    assert is_named(f"{drawn}-0", drawn)
    assert not is_named(f"{drawn}-0", "chatcmpl")
