"""``headway bench serve`` as it is typed, against a backend without a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli import main
from tests.fakes.bench_servers import mock_backend


@pytest.fixture(scope="module")
def url() -> Any:
    with mock_backend() as found:
        yield found


def bench(*flags: str) -> int:
    return main(["bench", "serve", *flags])


def test_a_run_prints_its_table_and_writes_every_request(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.json"
    flags = ("--rate", "200", "--num-requests", "40", "--max-tokens", "5", "--json", str(file))
    assert bench("--url", url, *flags, "--api-key", "secret") == 0
    printed = capsys.readouterr().out
    for word in ("TTFT", "TTFAT", "TPOT", "TBT", "TTLT", "P50", "P90", "P99", "goodput", "errors"):
        assert word in printed
    written = json.loads(file.read_text(encoding="utf-8"))
    summary, requests = written["summary"], written["requests"]
    assert (summary["num_finished"], summary["errors"], summary["output_tokens"]) == (40, {}, 200)
    assert summary["accuracy"]["add"]["num_right"] == 0
    assert [each["index"] for each in requests] == list(range(40))
    assert all(each["num_output_tokens"] == 5 for each in requests)
    assert written["config"]["model"] == "headway-mini"
    assert "secret" not in file.read_text(encoding="utf-8")


def test_a_trace_runs_with_random_tokens_at_its_lengths(url: str, tmp_path: Path) -> None:
    trace, file = tmp_path / "t.csv", tmp_path / "run.json"
    trace.write_text("arrival_at,prompt,output_tokens\n0,hi,3\n0.5,ho,4\n", encoding="utf-8")
    assert bench("--url", url, "--trace", str(trace), "--speed", "50", "--json", str(file)) == 0
    written = json.loads(file.read_text(encoding="utf-8"))
    assert [each["num_output_tokens"] for each in written["requests"]] == [3, 4]
    assert written["config"]["notes"] == ["the trace runs at 50 times its speed"]


@pytest.mark.parametrize(("flags", "said"), [(("--rate", "0"), "--rate is 0.0"), ((), "--rate")])
def test_a_run_has_a_rate(
    url: str, flags: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("--url", url, *flags) == 2
    assert said in capsys.readouterr().err


def test_a_server_that_does_not_answer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--rate", "1", "--url", "http://127.0.0.1:1") == 1
    assert "nothing answers at http://127.0.0.1:1" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_refused(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--rate", "inf", "--num-requests", "2", "--json", "/no/such/folder/x.json")
    assert bench("--url", url, *flags) == 2
    assert "cannot write /no/such/folder/x.json" in capsys.readouterr().err


def test_a_backend_that_refuses_the_first_request_stops_it(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--rate", "1", "--prompts", "random-tokens")
    assert bench("--url", url, *flags) == 1
    assert "the first request was refused: HTTP 404, no such page" in capsys.readouterr().err
