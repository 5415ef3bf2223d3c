"""The runner of live comparisons: its order, pairs, verdicts, tables and file."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from array import array
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.runner.comparison import LiveComparison, Measurement, compare
from bench.runner.paired import PairedSamples, paired
from bench.runner.started import LiveTarget
from bench.runner.verdict import FIGURES, ComparedFigure, Figure, Judgement, compared
from bench.serve.classes import Alone
from bench.serve.plan import Planned
from bench.serve.replay import ReplayedRequest
from headway.errors import Code, HeadwayError
from headway.metrics import RequestTimes

WAIT, RIGHT = Figure("wait", "waits, s", 0.1), Figure("right", "right", 0.01, more_is_better=True)


class Waits(LiveComparison):
    """Systems that are not there, each with its waits."""

    figures = (WAIT, RIGHT)

    def __init__(self, waits: Mapping[str, float], *regimes: str, stay_up: bool = False) -> None:
        super().__init__()
        self._waits = waits
        self.systems = list(waits)
        self.regimes = regimes or ("",)
        self.stay_up = stay_up
        self.done: list[str] = []
        self.failing = ""

    @asynccontextmanager
    async def serve(self, system: str) -> AsyncIterator[LiveTarget]:
        self.done.append(f"{system} up")
        yield LiveTarget("")
        self.done.append(f"{system} down")

    async def measure(self, system: str, target: LiveTarget, regime: str, seed: int) -> Measurement:
        run = " ".join(filter(None, (system, regime, str(seed))))
        self.done.append(run)
        if run == self.failing:
            raise HeadwayError(Code.UNAVAILABLE, "the cluster does not serve")
        figures = {"wait": self._waits[system] + seed / 100, "right": 1.0}
        return Measurement(figures, (), {"kept": run})


def waiting(**waits: float) -> Waits:
    return Waits(waits)


async def test_every_second_seed_goes_through_the_systems_in_reverse() -> None:
    what = Waits({"a": 1.0, "b": 1.0}, "light", "full")
    await compare(what, [7, 3], None)
    assert what.done == [
        *("a up", "a light 7", "a full 7", "a down", "b up", "b light 7", "b full 7", "b down"),
        *("b up", "b light 3", "b full 3", "b down", "a up", "a light 3", "a full 3", "a down"),
    ]


async def test_systems_that_stay_up_get_a_load_one_after_the_other() -> None:
    what = Waits({"a": 1.0, "b": 1.0}, "light", "full", stay_up=True)
    await compare(what, [7, 3], None)
    assert what.done == [
        *("a up", "b up", "a light 7", "b light 7", "a full 7", "b full 7"),
        *("b light 3", "a light 3", "b full 3", "a full 3", "b down", "a down"),
    ]


async def test_the_file_has_every_run_and_a_verdict_a_figure(tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    what = waiting(a=2.0, b=1.0)
    runs = await compare(what, [1, 2, 3], file)
    written = json.loads(file.read_text())
    assert [(run["system"], run["seed"]) for run in written["runs"]][:3] == [
        *(("a", 1), ("b", 1), ("b", 2))
    ]
    assert written["runs"][0]["figures"] == {"wait": 2.01, "right": 1.0}
    assert written["runs"][0]["kept"] == "a 1"
    wait, right = written["verdicts"][""]["b"]
    assert (wait["figure"], round(wait["change"], 9), wait["verdict"]) == ("wait", -1.0, "unclear")
    assert (right["change"], right["verdict"]) == (0.0, "no difference")
    assert runs.status == 0


async def test_a_comparison_that_fails_half_way_shows_and_keeps_the_pairs_that_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    what, file = waiting(a=2.0, b=1.0), tmp_path / "runs.json"
    what.failing = "b 3"
    with pytest.raises(HeadwayError, match="does not serve"):
        await compare(what, [1, 2, 3], file)
    assert [run["seed"] for run in json.loads(file.read_text())["runs"]] == [1, 1, 2, 2, 3]
    assert "seeds: 2" in capsys.readouterr().out


def table_of(said: str, first: str) -> list[str]:
    (line,) = (line for line in said.splitlines() if first in line)
    return [cell.strip() for cell in line.strip("│ ").split("│")]


async def test_two_systems_have_one_table_with_a_change_and_a_verdict_in_each_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    await compare(waiting(a=2.0, b=1.0), [10, 20, 40], None)
    said = capsys.readouterr().out
    cells = ["2.23 (2.1 to 2.4)", "1.23 (1.1 to 1.4)", "-1 (-45%)", "-", "unclear"]
    assert table_of(said, "waits, s") == ["waits, s", *cells]
    assert "b against a: 1 no difference, 1 unclear" in said
    assert "bar (2% of the first" in said


async def test_more_systems_have_a_table_of_values_and_one_of_changes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    await compare(waiting(a=2.0, b=1.0, c=3.0), [10, 20], None)
    values, _, changes = capsys.readouterr().out.partition("changes from a")
    assert table_of(values, "waits, s")[1:] == [
        *("2.15 (2.1 to 2.2)", "1.15 (1.1 to 1.2)", "3.15 (3.1 to 3.2)")
    ]
    assert table_of(changes, "waits, s")[1:] == [
        *("-1 (-47%) - too few pairs", "+1 (+47%) - too few pairs")
    ]


async def test_one_system_has_its_values_alone(capsys: pytest.CaptureFixture[str]) -> None:
    await compare(waiting(a=2.0), [1], None)
    said = capsys.readouterr().out
    assert table_of(said, "waits, s") == ["waits, s", "2.01"]
    assert "against" not in said
    assert "verdict" not in said


class Failing(Waits):
    async def measure(self, system: str, target: LiveTarget, regime: str, seed: int) -> Measurement:
        planned = Planned(0, 0.0, b"", "", None)
        broken = ReplayedRequest(planned, 0.0, error_kind="HTTP 503", error="no worker")
        return Measurement({}, [broken])


async def test_a_request_that_fails_is_told_at_once_and_is_the_exit_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (await compare(Failing({"a": 1.0}), [4], None)).status == 1
    said = capsys.readouterr().out
    assert "seed 4, a: 1 requests failed, the first: HTTP 503: no worker" in said


class Stopped(Waits):
    def __init__(self) -> None:
        super().__init__({"a": 1.0, "b": 2.0})
        self.stopping = asyncio.Event()

    async def measure(self, system: str, target: LiveTarget, regime: str, seed: int) -> Measurement:
        if system == "b":
            signal.raise_signal(signal.SIGINT)
            assert self.stopping is not None
            await self.stopping.wait()
        return await super().measure(system, target, regime, seed)


async def test_a_user_who_stops_it_sees_what_was_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    what = Stopped()
    assert (await compare(what, [1, 2], None)).status == 130
    assert what.done == ["a up", "a 1", "a down", "b up", "b 1"]
    assert table_of(capsys.readouterr().out, "waits, s")[1:3] == ["1.01", "2.01"]


def outcome(
    first: float, first_answer: float | None, *gaps: float, planned: Planned
) -> ReplayedRequest:
    times = RequestTimes(0.0, first, first_answer, first + sum(gaps), 1 + len(gaps))
    return ReplayedRequest(planned, 0.0, times=times, gaps=array("d", gaps))


# --- verdicts -------------------------------------------------------------------------

TAIL, KEPT = FIGURES[1], next(each for each in FIGURES if each.name == "qoe_kept")


def judged(before: tuple[float, ...], after: tuple[float, ...], figure: Figure = TAIL) -> Judgement:
    return ComparedFigure(figure, before, after).verdict


def test_a_change_in_every_pair_counts() -> None:
    assert judged((2.0, 2.2, 2.1), (1.0, 1.1, 1.2)) is Judgement.BETTER
    assert judged((1.0, 1.1, 1.2), (2.0, 2.2, 2.1)) is Judgement.WORSE
    assert judged((0.7, 0.72, 0.71), (0.9, 0.93, 0.92), KEPT) is Judgement.BETTER
    assert judged((0.9, 0.93, 0.92), (0.7, 0.72, 0.71), KEPT) is Judgement.WORSE


def test_a_change_that_the_pairs_do_not_agree_on_is_unclear() -> None:
    assert judged((2.0, 2.0, 2.0), (1.0, 2.9, 1.5)) is Judgement.UNCLEAR


def test_a_change_below_the_bar_is_none_however_sure_it_is() -> None:
    assert judged((0.02, 0.02, 0.02), (0.08, 0.08, 0.09)) is Judgement.EQUAL  # nobody notices
    assert judged((100.0,) * 3, (101.8, 101.8, 101.9)) is Judgement.EQUAL  # under 2 %
    assert judged((100.0,) * 3, (102.1, 102.1, 102.2)) is Judgement.WORSE


def test_pairs_that_all_change_alike_say_nothing_of_their_spread() -> None:
    assert judged((2.0, 2.0, 2.0), (1.0, 1.0, 1.0)) is Judgement.UNCLEAR
    assert judged((0.3, 0.2, 0.1), (1.3, 1.2, 1.1)) is Judgement.UNCLEAR  # but for rounding
    assert judged((0.0, 0.0, 0.0), (0.0, 0.0, 0.0)) is Judgement.EQUAL


@pytest.mark.parametrize(
    ("num_sampled", "verdict"),
    [(1, Judgement.UNCLEAR), (2, Judgement.UNCLEAR), (3, Judgement.BETTER)],
)
def test_an_interval_of_requests_is_of_the_pairs_that_have_some(
    num_sampled: int, verdict: Judgement
) -> None:
    rng = random.Random(1)
    waits = [[4.0 + rng.random() for _ in range(60)] for _ in range(3)]
    before = [{"chat_ttft_p99": 5.0}] * 3
    after = [{"chat_ttft_p99": 4.0}] * 3
    samples = of_requests(*((each, [wait - 1.0 for wait in each]) for each in waits[:num_sampled]))
    (row,) = compared(before, after, samples=[*samples, *[{}] * (3 - num_sampled)])
    assert row.verdict is verdict


@pytest.mark.parametrize("num_pairs", [1, 2])
def test_two_pairs_have_no_verdict_whatever_they_say(num_pairs: int) -> None:
    assert judged((2.0,) * num_pairs, (1.0,) * num_pairs) is Judgement.TOO_FEW
    assert judged((2.0,) * num_pairs, (2.0,) * num_pairs) is Judgement.TOO_FEW


def of_requests(*pairs: tuple[list[float], list[float]]) -> list[PairedSamples]:
    return [{"chat_ttft": (np.array(one), np.array(other))} for one, other in pairs]


def by_requests(*pairs: tuple[list[float], list[float]]) -> ComparedFigure:
    before, after = (
        [{"chat_ttft_p99": float(np.quantile(each[side], 0.99))} for each in pairs]
        for side in (0, 1)
    )
    (row,) = compared(before, after, samples=of_requests(*pairs))
    return row


def test_what_every_request_gains_counts_although_the_pairs_differ_by_far_more() -> None:
    rng = random.Random(1)
    pairs = []
    for level in (1.0, 4.0, 9.0):
        waits = [level + rng.random() for _ in range(60)]
        pairs.append((waits, [each - 0.4 for each in waits]))
    row = by_requests(*pairs)
    assert row.verdict is Judgement.BETTER
    assert row.noise < 0.1


def test_one_request_that_waits_long_makes_no_verdict() -> None:
    rng = random.Random(1)
    pairs = [([rng.random() for _ in range(30)], [rng.random() for _ in range(30)]) for _ in "abc"]
    pairs[1][1][7] = 60.0
    row = by_requests(*pairs)
    assert row.change > row.bar
    assert row.verdict is Judgement.UNCLEAR


def test_requests_are_paired_by_their_place_and_have_the_class_of_the_first_preset() -> None:
    plan = [Planned(n, 0.0, b"", "", None, reasons=n > 0) for n in range(4)]
    before = [outcome(1.0 + n, 3.0 + n, *[1.0] * (2 + n), planned=plan[n]) for n in range(4)]
    after = [outcome(2.0 + n, 4.0 + n, *[1.0] * (9 - n), planned=plan[n]) for n in range(4)]
    failed = replace(after[1], times=None)
    found = paired(before, [after[3], after[2], failed, after[0]], Alone(0.1, 0.1))
    chats, long = found["chat_ttft"], found["long_ttfat"]
    assert [each.tolist() for each in chats] == [[1.0], [2.0]]
    assert [each.tolist() for each in long] == [[6.0], [7.0]]
    assert found["slowdown"][0].shape == (3,)


def test_the_noise_is_half_of_the_95_percent_interval() -> None:
    found = ComparedFigure(TAIL, (0.0,) * 5, (1.0, 2.0, 3.0, 4.0, 5.0))
    assert found.noise == pytest.approx(2.78 * 1.5811 / 5**0.5, rel=1e-3)
    assert ComparedFigure(TAIL, (0.0,) * 12, tuple(map(float, range(12)))).noise > 0.0


@given(
    pairs=st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e4)), min_size=2, max_size=15),
    figure=st.sampled_from(FIGURES),
)
def test_what_is_better_one_way_is_worse_the_other_way_round(
    pairs: list[tuple[float, float]], figure: Figure
) -> None:
    before, after = zip(*pairs, strict=True)
    opposite = {Judgement.BETTER: Judgement.WORSE, Judgement.WORSE: Judgement.BETTER}
    one, other = ComparedFigure(figure, before, after), ComparedFigure(figure, after, before)
    if abs(one.change) - one.noise > max(one.bar, other.bar):  # a share of the first preset
        assert other.verdict is opposite.get(one.verdict, one.verdict)


def test_a_figure_that_a_run_lacks_leaves_that_pair_out() -> None:
    rows = compared(
        [{"chat_ttft_p99": 1.0}, {"chat_ttft_p99": 2.0}, {}],
        [{"chat_ttft_p99": 3.0}, {"qoe_kept": 1.0}, {"chat_ttft_p99": 1.0}],
    )
    assert [(row.figure.name, row.before, row.after) for row in rows] == [
        ("chat_ttft_p99", (1.0,), (3.0,))
    ]
