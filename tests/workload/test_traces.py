"""Traces: three formats read, malformed rows refused with file, line and value."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import HeadwayError
from headway.workload.traces import Trace, TraceRow, load_trace, read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def read(*lines: str, most_rows: int | None = None) -> Trace:
    return read_trace(lines, "t", most_rows=most_rows)


def test_azures_columns_are_read() -> None:
    trace = read(AZURE, "2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.6805900,396,109")
    assert trace.format == "azure"
    first, second = trace.rows
    assert first == TraceRow(0.0, 374, 44)
    assert second.arrival_at == pytest.approx(4.0)
    assert second == TraceRow(second.arrival_at, 396, 109)


def test_azures_later_files_with_time_zones_are_read() -> None:
    trace = read(AZURE, "2024-05-10 00:00:00.5+00:00,1,2", "2024-05-10 00:00:01.5+00:00,3,4")
    assert [row.arrival_at for row in trace.rows] == pytest.approx([0.0, 1.0])


def test_mooncakes_milliseconds_are_read_and_its_coarse_clock_is_noticed() -> None:
    rows = [
        {"timestamp": at, "input_length": 5, "output_length": 6} for at in (3000, 3000, 5999, 9000)
    ]
    trace = read(*map(json.dumps, rows))
    assert (trace.format, trace.step) == ("mooncake", 3.0)
    assert [row.arrival_at for row in trace.rows] == pytest.approx([0, 0, 2.999, 6])


def test_a_fine_clock_has_no_step() -> None:
    rows = [{"timestamp": at, "input_length": 5, "output_length": 6} for at in (0, 27, 3000)]
    assert read(*map(json.dumps, rows)).step == 0.0


def test_plain_rows_may_say_nothing_but_their_arrival() -> None:
    trace = read('{"arrival_at": 2, "prompt": "hi", "output_tokens": 3}', '{"arrival_at": 1.5}')
    assert trace.rows == (TraceRow(0.0), TraceRow(0.5, None, 3, "hi"))


def test_plain_csv_leaves_cells_empty() -> None:
    trace = read("arrival_at,prompt,prompt_tokens,output_tokens", '0,"Add 1, 2.",,7', "1,,4,")
    assert trace.rows == (TraceRow(0.0, None, 7, "Add 1, 2."), TraceRow(1.0, 4, None))


def test_blank_lines_are_passed_over_and_rows_come_sorted() -> None:
    trace = read("", "arrival_at", "3", "", "1")
    assert [row.arrival_at for row in trace.rows] == [0.0, 2.0]


def test_reading_stops_at_the_rows_wanted() -> None:
    assert len(read("arrival_at", "1", "2", "no number", most_rows=2).rows) == 2


@pytest.mark.parametrize(
    ("lines", "line", "value"),
    [
        ([AZURE, "2023-11-16 18:15:46,1,2", "yesterday,1,2"], 3, "'yesterday'"),
        ([AZURE, "2023-11-16 18:15:46,-1,2"], 2, "'-1'"),
        ([AZURE, "2023-11-16 18:15:46,1.5,2"], 2, "'1.5'"),
        ([AZURE, "2023-11-16 18:15:46,1"], 2, "'2023-11-16 18:15:46,1'"),
        ([AZURE, "2023-11-16 18:15:46,,2"], 2, "None"),
        (["when,tokens", "1,2"], 1, "'when,tokens'"),
        (["arrival_at", "nan"], 2, "'nan'"),
        (["arrival_at", "inf"], 2, "'inf'"),
        (["arrival_at", "-3"], 2, "'-3'"),
        (["arrival_at,output_tokens", "1,0"], 2, "'0'"),
        (['{"arrival_at": 1}', "", '{"arrival_at": tru'], 3, "'{\"arrival_at\": tru'"),
        (['{"arrival_at": 1}', "[1]"], 2, "'[1]'"),
        (['{"arrival_at": ' + "[" * 9000], 1, '\'{"arrival_at": [[['),
        (['{"arrival_at": true}'], 1, "True"),
        (['{"arrival_at": 1, "prompt": 7}'], 1, "7"),
        (['{"arrival_at": 1, "prompt_tokens": 2.5}'], 1, "2.5"),
        (['{"timestamp": "x", "input_length": 1, "output_length": 1}'], 1, "'x'"),
        (['{"speed": 1}'], 1, "'{\"speed\": 1}'"),
    ],
)
def test_a_malformed_row_is_refused_with_file_line_and_value(
    lines: list[str], line: int, value: str
) -> None:
    with pytest.raises(HeadwayError) as refused:
        read_trace(lines, "some.trace")
    assert refused.value.message.startswith(f"some.trace, line {line}: ")
    assert value in refused.value.message


@pytest.mark.parametrize("lines", [[], ["", " "], ["arrival_at"]])
def test_a_trace_without_rows_is_refused(lines: list[str]) -> None:
    with pytest.raises(HeadwayError, match="t "):
        read(*lines)


@given(st.lists(st.text(max_size=30), max_size=6))
def test_any_text_is_read_or_refused_in_words(lines: list[str]) -> None:
    try:
        trace = read_trace(lines, "t")
    except HeadwayError as error:
        assert error.message.startswith("t")
    else:
        assert trace.rows[0].arrival_at == 0.0


milliseconds = st.integers(0, 10**9).map(lambda number: number / 1e3)
instants = st.lists(milliseconds, min_size=2, max_size=30)


@given(instants, st.floats(0.01, 100.0))
def test_a_speed_scales_the_mean_rate(found: list[float], speed: float) -> None:
    trace = read("arrival_at", *map(repr, found))
    faster = trace.faster(speed)
    assert faster.mean_rate == pytest.approx(trace.mean_rate * speed)
    assert faster.rows[0].arrival_at == 0.0


@given(instants, st.integers(0, 99))
def test_spreading_moves_an_arrival_by_less_than_the_width(found: list[float], seed: int) -> None:
    trace = read("arrival_at", *map(repr, found))
    spread = trace.spread(3.0, random.Random(seed))
    pairs = zip(trace.rows, spread.rows, strict=True)
    assert all(abs(before.arrival_at - after.arrival_at) < 3.0 + 1e-6 for before, after in pairs)
    assert spread.rows[0].arrival_at == 0.0


def test_all_at_once_has_an_infinite_rate() -> None:
    assert math.isinf(read("arrival_at", "1", "1").mean_rate)


def test_no_rate_is_made_of_arrivals_that_come_at_once() -> None:
    trace = read_trace(["arrival_at", "3", "3"], "t")
    assert len(list(trace.replay(0.0, random.Random(1)))) == 2
    with pytest.raises(HeadwayError, match="come at once, at no rate: leave the rate out"):
        trace.replay(2.0, random.Random(1))


@pytest.mark.parametrize(
    ("name", "format", "num_rows", "first", "step"),
    [
        ("azure_llm_2023_conv.csv.gz", "azure", 19_366, TraceRow(0.0, 374, 44), 0.0),
        ("azure_llm_2023_code.csv.gz", "azure", 8_819, None, 0.0),
        ("mooncake_conversation_trace.jsonl.gz", "mooncake", 12_031, None, 3.0),
    ],
)
def test_published_traces_are_read_whole(
    name: str, format: str, num_rows: int, first: TraceRow | None, step: float
) -> None:
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not here")
    trace = load_trace(DATA / name)
    assert (trace.format, len(trace.rows), trace.step) == (format, num_rows, step)
    assert first is None or trace.rows[0] == first


# --- BurstGPT, Azure 2024, Mooncake's prefixes --------------------------------------------


def test_burstgpt_is_read_without_its_failed_requests() -> None:
    lines = [
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
        "5,ChatGPT,472,18,490,Conversation log",
        "45,ChatGPT,1087,0,1087,Conversation log",
        "118,GPT-4,417,276,693,API log",
    ]
    trace = read_trace(lines, "burstgpt")
    assert trace.format == "burstgpt"
    assert [(r.arrival_at, r.prompt_tokens, r.output_tokens) for r in trace.rows] == [
        (0.0, 472, 18),
        (113.0, 417, 276),
    ]


def test_azures_week_of_2024_has_time_zones() -> None:
    lines = [
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2024-05-10 00:00:00.009930+00:00,2162,5",
        "2024-05-10 00:00:01.509930+00:00,2399,6",
    ]
    assert [row.arrival_at for row in read_trace(lines, "azure").rows] == pytest.approx([0.0, 1.5])


def test_mooncakes_prefix_hashes_are_kept() -> None:
    line = '{"timestamp": 0, "input_length": 6755, "output_length": 500, "hash_ids": [0, 1, 2]}'
    (row,) = read_trace([line], "mooncake").rows
    assert row.prefix_hashes == (0, 1, 2)
    with pytest.raises(HeadwayError, match="hash_ids"):
        read_trace([line.replace("[0, 1, 2]", '"x"')], "mooncake")


# --- replay -------------------------------------------------------------------------------


def test_plain_rows_may_say_what_of_the_output_is_reasoning() -> None:
    (row,) = read('{"arrival_at": 0, "output_tokens": 9, "reasoning_tokens": 4}').rows
    assert (row.output_tokens, row.reasoning_tokens) == (9, 4)
    for wrong in ('"output_tokens": 4, "reasoning_tokens": 4', '"reasoning_tokens": 4'):
        with pytest.raises(HeadwayError, match="line 1: reasoning_tokens is 4"):
            read(f'{{"arrival_at": 0, {wrong}}}')


@given(instants, st.floats(0.01, 100.0))
def test_replay_at_a_rate_moves_arrivals_alone(found: list[float], rate: float) -> None:
    trace = read("arrival_at", *map(repr, found))
    assert tuple(trace.replay(0.0, random.Random(1))) == trace.rows
    if not math.isinf(trace.mean_rate):
        replayed = list(trace.replay(rate, random.Random(1)))
        assert (len(replayed) - 1) / replayed[-1].arrival_at == pytest.approx(rate)


def test_replay_spreads_a_coarse_clock_by_the_seed() -> None:
    rows = [
        {"timestamp": 3000 * (n // 50), "input_length": n + 1, "output_length": 6}
        for n in range(500)
    ]
    trace = read(*map(json.dumps, rows))
    one, again, other = (list(trace.replay(0.0, random.Random(seed))) for seed in (1, 1, 2))
    assert one == again != other
    assert len({row.arrival_at for row in one}) == 500
    steps = [((row.prompt_tokens or 0) - 1) // 50 for row in one]
    assert steps == sorted(steps)
