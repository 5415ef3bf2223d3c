"""ServeGen: clients' rates and length histograms become requests."""

from __future__ import annotations

import itertools
import json
import random
import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import HeadwayError
from headway.workload.servegen import ServeGen, Window, load_servegen, read_lengths, read_rates
from tests.fakes.servegen_samples import HEADER, histograms

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
RATES = [
    HEADER,
    "0,0,0.5,1,Gamma,1.0,2",
    "0,600,0,0,,0,0",
    "1,0,0.1,2,Weibull,0.5,5",
    "1,600,1.0,1,Gamma,1.0,1",
]


def servegen(rates: list[str] | None = None) -> ServeGen:
    windows, length = read_rates(RATES if rates is None else rates, "rates")
    lines = [histograms(0, 0, 10), histograms(1, 0, 20, 0.9), histograms(1, 900, 30, 0.0)]
    return ServeGen(windows, length, read_lengths(lines, "lengths"))


def test_every_window_has_as_many_requests_as_its_rate_says() -> None:
    source = servegen()
    rows = list(source.replay(0.0, random.Random(1)))
    counts = Counter((row.prompt_tokens == 10, row.arrival_at >= 600) for row in rows)
    assert counts == {(True, False): 300, (False, False): 60, (False, True): 600}
    assert [row.arrival_at for row in rows] == sorted(row.arrival_at for row in rows)
    assert source.mean_rate == pytest.approx(960 / 1200)


def test_a_client_has_the_lengths_of_the_time() -> None:
    rows = list(servegen().replay(0.0, random.Random(2)))
    for row in rows:
        assert row.output_tokens in (100, 200)
        if row.prompt_tokens == 10:
            assert row.reasoning_tokens == 0
        elif row.arrival_at < 900:
            assert (row.prompt_tokens, row.reasoning_tokens) == (20, 0.9 * (row.output_tokens or 0))
        else:
            assert (row.prompt_tokens, row.reasoning_tokens) == (30, 0)


def test_a_seed_gives_the_same_requests_again() -> None:
    one, again, other = (list(servegen().replay(0.0, random.Random(n))) for n in (3, 3, 4))
    assert one == again != other


def test_a_rate_makes_time_run_faster() -> None:
    source = servegen()
    slow, fast = (list(source.replay(rate, random.Random(5))) for rate in (0.0, 8.0))
    assert [row.arrival_at for row in fast] == pytest.approx([r.arrival_at / 10 for r in slow])
    assert [r.prompt_tokens for r in fast] == [r.prompt_tokens for r in slow]


def test_replay_may_start_later_in_the_day() -> None:
    rows = list(servegen().starting_at(700).replay(0.0, random.Random(6)))
    assert len(rows) == 600
    assert rows[0].arrival_at < 600
    with pytest.raises(HeadwayError, match=r"servegen\.start is 1200"):
        servegen().starting_at(1200)


def test_the_gaps_have_the_fitted_shape() -> None:
    for gaps, shape, expected in (("Gamma", 0.25, 2.0), ("Weibull", 0.5, 5**0.5)):
        instants = Window(0, 0.0, 40_000, gaps, shape).instants(1.0, random.Random(7))
        found = [after - at for at, after in itertools.pairwise(instants)]
        variation = statistics.pstdev(found) / statistics.fmean(found)
        assert variation == pytest.approx(expected, rel=0.06)


@given(st.integers(0, 50), st.sampled_from(["Gamma", "Weibull"]), st.floats(0.01, 1000.0))
def test_a_windows_requests_lie_in_it(count: int, gaps: str, shape: float) -> None:
    instants = Window(0, 600.0, count, gaps, shape).instants(600.0, random.Random(count))
    assert len(instants) == count
    assert all(600.0 <= at <= 1200.0 for at in instants)
    assert instants == sorted(instants)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("0,0,-1,1,Gamma,1,2", "line 2: rate_rps is '-1'"),
        ("0,0,1,1,Pareto,1,2", "line 2: iat_dist is 'Pareto'"),
        ("0,0,1,1,Gamma,0,2", "line 2: param1 is 0.0"),
        ("0,x,1,1,Gamma,1,2", "line 2: window_start_s is 'x'"),
        ("0,0,0,0,,0,0", "has no window with a request"),
    ],
)
def test_a_wrong_rate_is_refused_with_its_line(line: str, said: str) -> None:
    with pytest.raises(HeadwayError) as refused:
        read_rates([HEADER, line], "rates")
    assert said in refused.value.message


def test_a_file_of_something_else_is_refused() -> None:
    with pytest.raises(HeadwayError, match="with client, window_start_s, rate_rps"):
        read_rates(["arrival_at", "1"], "rates")
    with pytest.raises(HeadwayError, match="with client, window_start_s, input_tokens"):
        read_lengths(['{"arrival_at": 1}'], "lengths")


@pytest.mark.parametrize(
    "table", [{"x": 1.0}, {"5": "x"}, {"5": -1.0}, {"5": 0.0}, {"-5": 1.0}, [5], {"nan": 1.0}]
)
def test_a_histogram_that_is_none_is_refused(table: object) -> None:
    row = {"client": 0, "window_start_s": 0, "input_tokens": table, "output_tokens": {"1": 1}}
    with pytest.raises(HeadwayError, match="line 1: input_tokens is"):
        read_lengths([json.dumps(row)], "lengths")


def test_a_ratio_over_one_is_refused() -> None:
    with pytest.raises(HeadwayError, match="line 1: reason_ratio is"):
        read_lengths([histograms(0, 0, 5, 1.5)], "lengths")


def test_a_client_without_lengths_is_named(tmp_path: Path) -> None:
    rates, lengths = tmp_path / "rates.csv", tmp_path / "lengths.jsonl"
    rates.write_text("\n".join(RATES))
    lengths.write_text(histograms(0, 0, 5))
    with pytest.raises(HeadwayError, match="no lengths of client 1"):
        load_servegen(rates, lengths)


def test_published_statistics_become_a_day_of_requests() -> None:
    rates, lengths = (
        DATA / f"servegen_deepseek_r1_{name}" for name in ("rates.csv.gz", "lengths.jsonl.gz")
    )
    if not (rates.exists() and lengths.exists()):
        pytest.skip("ServeGen's statistics are not here")
    source = load_servegen(rates, lengths)
    assert source.mean_rate == pytest.approx(16.0147, rel=1e-4)
    assert sum(window.num_requests for window in source.windows) == 1_383_669
    some = replace(source, windows=tuple(w for w in source.windows if not w.starts_at % 10_800))
    rows = list(some.replay(0.0, random.Random(1)))
    short = sum(row.reasoning_tokens < 1000 for row in rows) / len(rows)
    assert 0.70 < short < 0.80  # of the whole day, 71 to 76 % where nothing depends on anything
