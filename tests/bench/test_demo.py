"""``headway demo``: the same burst for every preset, and the figures side by side."""

from __future__ import annotations

import argparse
import io
from array import array

import pytest
from rich.console import Console

from bench.demo.burst import make_burst
from bench.demo.table import figures, print_table, values_of
from bench.serve.plan import Planned
from bench.serve.replay import ReplayedRequest
from cli import demo
from headway.errors import HeadwayError
from headway.metrics import RequestTimes


def test_a_seed_gives_the_same_requests_at_the_same_instants() -> None:
    one, other = make_burst("m", 60, 4.0, 3), make_burst("m", 60, 4.0, 3)
    assert one == other
    assert one.num_requests == 60
    assert make_burst("m", 60, 4.0, 4) != one


def test_a_third_of_the_requests_come_within_a_second() -> None:
    burst = make_burst("m", 300, 4.0, 1)
    instants = sorted(
        each.arrival_at for plan in (burst.reasoning, burst.chats) for each in plan.requests
    )
    most = max(sum(at <= each < at + 1.0 for each in instants) for at in instants)
    assert 95 <= most <= 115
    assert 0.25 < len(burst.reasoning.requests) / 300 < 0.55


def test_even_a_small_burst_has_both_kinds() -> None:
    for seed in range(20):
        burst = make_burst("m", 6, 4.0, seed)
        assert burst.reasoning.requests
        assert burst.chats.requests


def outcome(first: float, first_answer: float | None, *gaps: float) -> ReplayedRequest:
    times = RequestTimes(0.0, first, first_answer, first + sum(gaps), 1 + len(gaps))
    return ReplayedRequest(Planned(0, 0.0, b"", "", None), 0.0, times=times, gaps=array("d", gaps))


def test_qoe_counts_from_the_first_answering_token() -> None:
    smooth = outcome(1.0, 3.0, 2.0, 0.05, 0.05)
    stalled = outcome(1.0, 1.0, 0.05, 5.0, 0.05)
    (whole,) = values_of([smooth])["qoe"]
    (less,) = values_of([stalled])["qoe"]
    assert whole == pytest.approx(1.0)
    assert less < 0.95


def test_a_request_without_an_answer_has_no_qoe_and_no_ttfat() -> None:
    values = values_of([outcome(1.0, None, 0.1, 0.1)])
    assert (values["qoe"], values["ttfat"], values["ttft"]) == ([], [], [1.0])
    assert "QoE, mean" not in figures(values)


def test_the_last_run_is_set_against_the_first() -> None:
    runs = {
        "a": figures(values_of([outcome(1.0, 1.0, 0.1, 0.1)])),
        "b": figures(values_of([outcome(0.5, 0.5, 0.1, 0.1)])),
    }
    console = Console(file=io.StringIO(), width=120)
    print_table(console, "title", runs)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "TTFT P99, s" in text
    assert "-50 %" in text


@pytest.mark.parametrize("presets", ["sbs", "sbs,sbs", "sbs,fast"])
def test_fewer_than_two_known_presets_are_refused(presets: str) -> None:
    parser = argparse.ArgumentParser()
    demo.add_options(parser)
    args = parser.parse_args(["--presets", presets])
    with pytest.raises(HeadwayError, match="preset"):
        demo.run(args)
