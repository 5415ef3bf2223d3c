"""``headway bench vllm``: figures of a contender, and what is refused before anything starts."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from bench.serve.classes import Alone
from bench.serve.plan import Planned
from bench.serve.replay import ReplayedRequest
from bench.vllm.contenders import CONTENDERS, SAID, Comparison
from bench.vllm.figures import ROWS, cells, figures_of
from bench.vllm.server import EngineLimits
from cli import main
from headway.metrics import RequestTimes
from services.worker.engines import known_engines

ALONE = Alone(0.1, 0.01)
SETTING = Comparison("models/m", EngineLimits(4), "headway", "uniboost", Path("logs"))


def outcome(ttlt: float, *, reasons: bool = False, is_read: bool = True) -> ReplayedRequest:
    """A request of eleven tokens: alone it takes 0.2 s."""
    planned = Planned(0, 0.0, b"", "", None, reasons=reasons, is_read=is_read)
    gaps = array("d", [(ttlt - 0.1) / 10] * 10)
    first_answer = 0.1 + sum(gaps[:5]) if reasons else 0.1
    times = RequestTimes(0.0, 0.1, first_answer, ttlt, 11)
    return ReplayedRequest(planned, 0.0, ttlt, times, gaps)


def failed() -> ReplayedRequest:
    planned = Planned(0, 0.0, b"", "", None, reasons=False)
    return ReplayedRequest(planned, 0.0, 9.0, error_kind="cut off", error="why")


def test_a_request_attains_its_objective_by_its_class_and_one_that_fails_does_not() -> None:
    requests = [outcome(0.9), outcome(1.1), failed(), outcome(0.5, reasons=True)]
    found = figures_of([*requests, outcome(3.0, is_read=False)], ALONE, 5.0)
    assert found["chat_kept"] == pytest.approx(1 / 3)
    assert (found["reasoning_kept"], found["unread_kept"]) == (1.0, 0.0)
    assert (found["num_failed"], found["seconds"]) == (1, 9.0)
    assert found["chat_in_time"] == pytest.approx(2 / 3)
    assert found["reasoning_in_time"] == 1.0
    assert "unread_in_time" not in found
    assert found["ttlt_mean"] == pytest.approx((0.9 + 1.1 + 0.5 + 3.0) / 4)
    assert found["slowdown_p50"] == pytest.approx((0.9 + 1.1) / 2 / 0.2)


def test_the_table_has_a_row_for_every_figure_that_some_run_has() -> None:
    runs = {"one": {"ttft_mean": 1.0}, "other": {"ttft_mean": 2.0, "num_failed": 0.0}}
    rows = list(cells(runs, str))
    assert rows == [
        (ROWS["ttft_mean"], "1.0", "2.0"),
        (ROWS["num_failed"], "None", "0.0"),
    ]


def test_every_contender_has_a_word_and_all_engines_the_same_limits() -> None:
    assert set(SAID) == set(CONTENDERS)
    command = SETTING.server("--scheduling-policy", "priority").command(9000)
    assert command[-2:] == ["--scheduling-policy", "priority"]
    flags = SETTING.cluster("vllm", {}).service_flags["worker"]
    for ours, theirs in (("--max-running", "--max-num-seqs"), ("--chunk-tokens", "--max-num-b")):
        place = next(n for n, each in enumerate(command) if each.startswith(theirs))
        assert flags[flags.index(ours) + 1] == command[place + 1]


def test_an_unknown_contender_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "vllm", "--contenders", "fcfs,sglang"]) == 2
    assert "different ones of fcfs, plug-in" in capsys.readouterr().err


@pytest.mark.skipif("vllm" in known_engines(), reason="vLLM is installed here")
def test_without_vllm_it_says_so_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "vllm"]) == 1
    said = capsys.readouterr().err.strip()
    assert "engine 'vllm' is not installed" in said
    assert len(said.splitlines()) == 1
