"""A scenario's workload: traces, ServeGen, lengths that were seen; files beside the scenario."""

from __future__ import annotations

import statistics
from itertools import pairwise
from pathlib import Path

import pytest

from headway.errors import HeadwayError
from headway.presets import PRESETS
from headway.sim.experiment import cluster_spec, simulate
from headway.sim.scenario import load_scenario, parse_scenario
from headway.sim.workload import Workload
from tests.fakes.servegen_samples import HEADER, histograms

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
CLUSTER = """
[[instances]]
role = "unified"
count = 2
profile = "llama-8b-a100"
[workload]
"""
CLASS = """
[[workload.classes]]
prompt = 5
answer = { distribution = "empirical", file = "seen.csv", column = "tokens" }
"""


def read(workload: str, folder: Path = Path()) -> Workload:
    return parse_scenario(CLUSTER + workload, "test", folder).workload


def test_files_are_looked_for_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "seen.csv").write_text("tokens\n3\n8\n")
    (tmp_path / "trace.csv").write_text("arrival_at\n1\n4\n")
    (tmp_path / "my.toml").write_text(CLUSTER + 'trace = "trace.csv"' + CLASS)
    requests = list(load_scenario(str(tmp_path / "my.toml")).workload.requests(1))
    assert [request.arrival_at for request in requests] == [0.0, 3.0]
    assert {request.num_output_tokens for request in requests} <= {3, 8}


def test_a_trace_ends_at_the_rows_wanted(tmp_path: Path) -> None:
    rows = "".join(f"{n * n},5,5\n" for n in range(10))
    (tmp_path / "trace.csv").write_text("arrival_at,prompt_tokens,output_tokens\n" + rows)
    whole, some = (
        list(read(f'trace = "trace.csv"\nrate = 2.0\n{rest}', tmp_path).requests(1))
        for rest in ("", "num_requests = 4")
    )
    assert (len(whole), len(some)) == (10, 4)
    assert (whole[-1].arrival_at, some[-1].arrival_at) == (4.5, 1.5)  # both at 2 a second
    seconds = read('trace = "trace.csv"\nseconds = 20', tmp_path)
    assert [request.arrival_at for request in seconds.requests(1)] == [0.0, 1.0, 4.0, 9.0, 16.0]


def test_reasoning_of_a_trace_is_asked_for(tmp_path: Path) -> None:
    row = '{"arrival_at": 0, "prompt_tokens": 5, "output_tokens": 9, "reasoning_tokens": 4}'
    (tmp_path / "trace.jsonl").write_text(row)
    (request,) = read('trace = "trace.jsonl"', tmp_path).requests(1)
    assert (request.num_reasoning_tokens, request.num_answer_tokens) == (4, 5)


def test_servegens_statistics_become_requests(tmp_path: Path) -> None:
    (tmp_path / "rates.csv").write_text(f"{HEADER}\n7,0,0.1,1,Gamma,1.0,2\n7,600,0.2,1,Gamma,2,1\n")
    (tmp_path / "lengths.jsonl").write_text(histograms(7, 0, 10, 0.5))
    table = 'servegen = { rates = "rates.csv", lengths = "lengths.jsonl", start = 600 }\nrate = 6.0'
    workload = read(table, tmp_path)
    requests = list(workload.requests(1))
    assert requests == list(workload.requests(1)) != list(workload.requests(2))
    assert len(requests) == 120
    assert requests[-1].arrival_at < 20.0
    assert {request.num_reasoning_tokens for request in requests} == {50, 100}


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ('trace = "t.csv"\nprocess = "poisson"', "workload's keys is ['trace', 'process']"),
        ('trace = ""', "workload.trace is ''; it must be a path"),
        ("servegen = 3", "workload.servegen is 3"),
        ('servegen = { rates = "r.csv" }', "workload.servegen.lengths is None"),
        ('servegen = { rates = "r", lengths = "l", end = 3 }', "a key of workload.servegen"),
        ('servegen = { rates = "r", lengths = "l", start = "x" }', "servegen.start is 'x'"),
        ('servegen = { rates = "/nowhere", lengths = "/nowhere" }', "cannot read /nowhere"),
        ('rate = 1\nprocess = "fractal"\nseconds = 1' + CLASS, "workload.process is 'fractal'"),
        ("rate = 1\nburst_factor = 2\nseconds = 1" + CLASS, 'given with process = "bursts"'),
        ("rate = 1\nburstiness = 2\nseconds = 1" + CLASS, 'given with process = "gamma"'),
        ('rate = 1\nprocess = "bursts"\nburst_wave = 2\nseconds = 1', "burst_wave is 2"),
        ("rate = 1\nnum_requests = 1.5" + CLASS, "workload.num_requests is 1.5"),
        ("rate = 1\nnum_requests = 0" + CLASS, "workload.num_requests is 0"),
        ('trace = "seen.csv"\nclasses = ["chat"]', "workload.classes is ['chat']; it must be at"),
        ('rates = "r.csv"\nclasses = ["chat"]', "at least one table: [[workload.classes]]"),
        ('rates = "r.csv"', "workload.classes is None; it must be at least one table"),
        ('rates = "r.csv"\nrate = -3' + CLASS, "workload.rate is -3.0; it must be 0 for the"),
        ('rates = "r.csv"\nrate = nan' + CLASS, "workload.rate is nan; it must be 0 for the"),
        ('trace = "t.csv"\nrate = -3', "workload.rate is -3.0; it must be 0 for the recorded"),
        ('trace = "t.csv"\nrate = nan', "workload.rate is nan; it must be 0 for the recorded"),
        ('trace = "t.csv"\nrate = inf', "workload.rate is inf; it must be 0 for the recorded"),
    ],
)
def test_a_workload_that_cannot_be_is_refused(tmp_path: Path, workload: str, said: str) -> None:
    (tmp_path / "seen.csv").write_text("tokens\n3\n")
    (tmp_path / "r.csv").write_text("at,rate\n0,5\n60,1\n")
    (tmp_path / "t.csv").write_text("arrival_at,prompt_tokens,output_tokens\n0,9,9\n1,9,9\n")
    if "burst_wave" in workload:
        workload += CLASS
    with pytest.raises(HeadwayError) as refused:
        read(workload, tmp_path)
    assert said in refused.value.message


# --- published data -----------------------------------------------------------------------


def published(name: str) -> Path:
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not here")
    return DATA / name


def dispersion(workload: Workload) -> float:
    """Of the counts in seconds: variance over mean."""
    counts: dict[int, int] = {}
    for request in workload.requests(1):
        counts[int(request.arrival_at)] = counts.get(int(request.arrival_at), 0) + 1
    bins = [counts.get(at, 0) for at in range(max(counts))]
    return statistics.pvariance(bins) / statistics.fmean(bins)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("azure_llm_2023_conv.csv.gz", 1.39),
        ("azure_llm_2023_code.csv.gz", 13.2),
        ("mooncake_conversation_trace.jsonl.gz", 1.04),
    ],
)
def test_published_traces_replay_as_bursty_as_they_are(name: str, expected: float) -> None:
    assert dispersion(read(f'trace = "{published(name)}"')) == pytest.approx(expected, rel=0.05)


def test_mooncakes_requests_run_with_their_prefixes() -> None:
    file = published("mooncake_conversation_trace.jsonl.gz")
    scenario = parse_scenario(f'{CLUSTER}trace = "{file}"\nnum_requests = 40\nrate = 1', "test")
    requests = list(scenario.workload.requests(1))
    assert all(len(r.prefix_hashes) == -(-r.num_prompt_tokens // 512) for r in requests)
    assert all(before.arrival_at <= after.arrival_at for before, after in pairwise(requests))
    spec = cluster_spec(PRESETS["vllm-like"], scenario.conditions)
    assert all(record.finished for record in simulate(spec, requests).records)


def test_a_class_says_which_share_of_its_requests_is_read() -> None:
    each = "\n[[workload.classes]]\nprompt = 5\nanswer = 9\n"
    plain, half, none = (
        list(read(f"rate = 5\nnum_requests = 400{each}{line}").requests(1))
        for line in ("", "read = 0.5", "read = 0")
    )
    assert all(request.is_read for request in plain)
    assert 150 < sum(request.is_read for request in half) < 250
    assert not any(request.is_read for request in none)
    with pytest.raises(HeadwayError, match="read"):
        read(f"rate = 5\nnum_requests = 4{each}read = 2")


def test_who_waits_for_the_end_has_no_readers_clock() -> None:
    text = "rate = 5\nnum_requests = 9\n[[workload.classes]]\nprompt = 5\nanswer = 9\nread = 0\n"
    scenario = parse_scenario(CLUSTER + text, "test")
    run = simulate(
        cluster_spec(PRESETS["headway"], scenario.conditions), scenario.workload.requests(1)
    )
    served = [record.as_served() for record in run.records]
    assert len(served) == 9
    assert all(each is not None and each.reading is None for each in served)


JOINT = """
[[workload.classes]]
name = "chat"
file = "seen.csv"
columns = ["prompt_tokens", "reasoning_tokens", "answer_tokens"]
where = { kind = "chat" }
"""
SEEN = """kind,prompt_tokens,reasoning_tokens,answer_tokens
chat,10,1,2
batch,99,99,99
chat,500,50,60
"""


def test_columns_are_drawn_jointly_from_the_rows_that_are_meant(tmp_path: Path) -> None:
    (tmp_path / "seen.csv").write_text(SEEN)
    workload = read("rate = 5\nnum_requests = 50" + JOINT, tmp_path)
    drawn = {
        (r.num_prompt_tokens, r.num_reasoning_tokens, r.num_answer_tokens)
        for r in workload.requests(1)
    }
    assert drawn == {(10, 1, 2), (500, 50, 60)}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"chat" }', '"code" }', "no row with kind = code"),
        ("where = { kind", "where = { sort", "the column is 'sort'"),
        ('"answer_tokens"]', '"answers"]', "the column is 'answers'"),
        ('["prompt_tokens", "reasoning_tokens", "answer_tokens"]', '["prompt_tokens"]', "columns"),
        ('file = "seen.csv"', "prompt = 3", "left out"),
        ('file = "seen.csv"', "", "workload.classes.file is None"),
        ('file = "seen.csv"', 'file = "none.csv"', "cannot read"),
    ],
)
def test_columns_that_cannot_be_drawn_are_refused(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    (tmp_path / "seen.csv").write_text(SEEN)
    assert old in JOINT
    with pytest.raises(HeadwayError, match=says):
        read("rate = 5\nnum_requests = 50" + JOINT.replace(old, new), tmp_path)


@pytest.mark.parametrize("window", ["start = 10\nend = 40", "start = 10\nduration = 30"])
def test_a_window_of_a_trace_begins_at_0(tmp_path: Path, window: str) -> None:
    rows = "".join(f"{at},5,5\n" for at in (100, 105, 112, 139, 140, 200))
    (tmp_path / "trace.csv").write_text("arrival_at,prompt_tokens,output_tokens\n" + rows)
    requests = read(f'trace = "trace.csv"\n{window}', tmp_path).requests(1)
    assert [request.arrival_at for request in requests] == [2.0, 29.0]


def test_a_window_of_servegens_statistics_has_whole_windows(tmp_path: Path) -> None:
    rows = "".join(f"1,{at},0.1,1,Gamma,1,0\n" for at in (0, 600, 1200))
    (tmp_path / "rates.csv").write_text(HEADER + "\n" + rows)
    (tmp_path / "lengths.jsonl").write_text(histograms(1, 0, 9) + "\n")
    table = 'servegen = { rates = "rates.csv", lengths = "lengths.jsonl" }\n'
    whole = list(read(table, tmp_path).requests(1))
    some = list(read(table + "start = 600\nend = 1200", tmp_path).requests(1))
    assert (len(whole), len(some)) == (180, 60)
    assert 0 <= some[0].arrival_at < some[-1].arrival_at < 600


def test_rates_over_time_take_any_classes(tmp_path: Path) -> None:
    (tmp_path / "rates.csv").write_text("at,chat,batch\n0,5,0\n60,0,5\n120,0,0\n")
    classes = "".join(
        f'[[workload.classes]]\nname = "{name}"\nprompt = {size}\nanswer = 3\n'
        for name, size in (("chat", 7), ("batch", 90))
    )
    found = list(read('rates = "rates.csv"\n' + classes, tmp_path).requests(1))
    assert {r.num_prompt_tokens for r in found if r.arrival_at < 60} == {7}
    assert {r.num_prompt_tokens for r in found if r.arrival_at >= 60} == {90}
    even = list(read('rates = "rates.csv"\nprocess = "constant"\n' + classes, tmp_path).requests(1))
    assert even[1].arrival_at == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("rate = 3\nnum_requests = 5\nstart = 3", "workload.start is 3"),
        ('rates = "rates.csv"\nend = 5\nduration = 3', "workload.duration is 3"),
        ('rates = "rates.csv"\nstart = 5\nend = 3', "the end later"),
        ('rates = "rates.csv"\nprocess = "bursts"', "workload.process is 'bursts'"),
        ('rates = "rates.csv"\ntrace = "t.csv"', "one of these"),
        ('rates = "other.csv"', "a column of workload.rates is 'chat'"),
        ('rates = "none.csv"', "cannot read"),
    ],
)
def test_rates_and_windows_that_say_nothing_are_refused(
    tmp_path: Path, table: str, says: str
) -> None:
    (tmp_path / "rates.csv").write_text("at,rate\n0,5\n60,1\n")
    (tmp_path / "other.csv").write_text("at,chat\n0,5\n60,1\n")
    with pytest.raises(HeadwayError, match=says):
        read(table + "\n[[workload.classes]]\nprompt = 3\nanswer = 3\n", tmp_path)
