"""Figures by class: one table, whoever prints it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from bench.runner.verdict import FIGURES
from bench.serve.report import print_report, summarise
from cli.simulate import print_runs
from headway.class_metrics import TITLES
from headway.metrics import Slo
from results.by_class import print_by_class


def printed(runs: dict[str, dict[str, float]], title: str = "") -> str:
    console = Console(file=io.StringIO(), width=100)
    print_by_class(console, title, runs)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_every_tail_has_a_row_and_every_run_a_column() -> None:
    text = printed({"a": dict.fromkeys(TITLES, 1.25), "b": dict.fromkeys(TITLES, 1234.5)}, "10/s")
    for title in TITLES.values():
        assert title in text
    assert text.count("1.25") == text.count("1,234") == len(TITLES)
    assert "10/s" in text


def test_a_class_that_no_run_has_is_left_out_and_one_that_a_run_lacks_is_a_dash() -> None:
    text = printed({"a": {"chat_ttft_p99": 1.5}, "b": {"qoe_kept": 0.5}})
    rows = [line for line in text.splitlines() if "chats: TTFT P99" in line or "QoE" in line]
    assert [row.count(" - ") for row in rows] == [1, 1]
    assert "reasoning" not in text
    assert printed({"a": {}}) == ""


def test_simulated_served_and_compared_figures_have_the_same_titles(
    capsys: pytest.CaptureFixture[str],
) -> None:
    figures = dict.fromkeys(TITLES, 1.0)
    runs = [{"preset": name, "rate": rate, **figures} for rate in (1.0, 2.0) for name in "ab"]
    print_runs(runs)
    said = capsys.readouterr().out
    console = Console(file=io.StringIO(), width=100)
    summary = {**summarise([], Slo({}), 1.0), "by_class": figures}
    print_report(console, "a run", summary, ())
    assert isinstance(console.file, io.StringIO)
    served = console.file.getvalue()
    for name in ("chat_ttft_p99", "long_ttfat_p99", "lateness_p99"):
        assert TITLES[name] in said
        assert TITLES[name] in served
        assert TITLES[name] in [figure.title for figure in FIGURES]
    assert said.count("1 requests/s") == said.count("2 requests/s") == 1
