"""The table of clients: how a case is judged, how results are kept and drawn."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from bench.clients.inside import FAILED, PASSED, REFUSED, judge
from bench.clients.page import drawn, merged, read_results
from bench.clients.roster import CLIENTS, PeerClient
from bench.clients.run import ClientTarget, python_of, run_client
from headway.errors import HeadwayError

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
CASES = Path(__file__).parents[2] / "bench" / "clients" / "cases"


def fails(error: BaseException) -> None:
    raise error


def test_a_case_passes_if_nothing_is_raised() -> None:
    assert judge(lambda: None, "", 60) == (PASSED, "")
    assert judge(lambda: None, "by design", 60) == (PASSED, "")


@pytest.mark.parametrize(
    ("error", "by_design", "outcome"),
    [
        (ValueError("400: no"), "it is not ours", (REFUSED, "it is not ours")),
        (ValueError("400:\n no"), "", (FAILED, "400: no")),
        (AssertionError("3 is not 4"), "it is not ours", (FAILED, "3 is not 4")),
        (TimeoutError("too long"), "it is not ours", (FAILED, "too long")),
        (SystemExit(2), "", (FAILED, "2")),
    ],
)
def test_a_refusal_counts_where_it_is_by_design(
    error: BaseException, by_design: str, outcome: tuple[str, str]
) -> None:
    assert judge(lambda: fails(error), by_design, 60) == outcome


def test_a_case_that_takes_too_long_fails() -> None:
    outcome, why = judge(lambda: time.sleep(60), "by design", 1)
    assert (outcome, why) == (FAILED, "the case took too long")


def test_what_a_case_says_is_one_short_line() -> None:
    _, why = judge(lambda: fails(ValueError("a\nb " * 200)), "", 60)
    assert len(why) == 160
    assert "\n" not in why


def test_every_client_has_a_file_of_cases() -> None:
    assert all((CASES / f"{client.module}.py").exists() for client in CLIENTS)
    assert len({client.name for client in CLIENTS}) == len(CLIENTS)


def test_a_client_whose_process_ends_early_has_failed(tmp_path: Path) -> None:
    client = PeerClient("none", ("pip==0",), "no_such_file")
    target = ClientTarget("http://127.0.0.1:9", "m", "t")
    (found,) = run_client(client, Path(sys.executable), target, tmp_path)
    assert (found.client, found.case, found.outcome) == ("none", "all cases", FAILED)
    assert "no_such_file.log" in found.said


def test_an_environment_is_made_once(tmp_path: Path) -> None:
    client = PeerClient("a client", (), "none")
    python = python_of(client, tmp_path, {"a client": tmp_path / "given"})
    assert python == tmp_path / "given" / "bin" / "python"
    (tmp_path / "a-client").mkdir()
    (tmp_path / "a-client" / "requirements.txt").write_text("")
    assert python_of(client, tmp_path, {}) == tmp_path / "a-client" / "bin" / "python"


def test_a_client_that_needs_an_interpreter_says_so_where_there_is_none(tmp_path: Path) -> None:
    client = PeerClient("a client", (), "none", python="python9.9")
    with pytest.raises(HeadwayError, match=r"a client needs python9\.9 on PATH"):
        python_of(client, tmp_path, {})


def test_results_of_other_clients_are_kept() -> None:
    old = {"date": "1", "cases": [{"client": "a", "case": "x"}, {"client": "b", "case": "y"}]}
    new = {"date": "2", "cases": [{"client": "a", "case": "z"}]}
    assert merged(old, new) == {"date": "2", "cases": [old["cases"][1], new["cases"][0]]}
    assert merged({}, new) == new


def test_a_text_stays_in_its_cell() -> None:
    case = {"client": "a", "version": "1", "case": "x", "outcome": FAILED, "said": "a|b <c>"}
    text = drawn({"date": "2026-11-22", "cases": [case]})
    assert "| a | 1 | 0 | 0 | 1 |" in text
    assert "| a | x | failed | a/b ‹c› |" in text


def test_the_page_shows_the_results_that_are_kept() -> None:
    assert drawn(read_results()) in PAGE.read_text(encoding="utf-8")


def test_the_raw_cases_are_83() -> None:
    results = [case for case in read_results()["cases"] if case["client"] == "openai"]
    assert len(results) == 83
