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
    ],
)
def test_a_workload_that_cannot_be_is_refused(tmp_path: Path, workload: str, said: str) -> None:
    (tmp_path / "seen.csv").write_text("tokens\n3\n")
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
    felt = [record.felt() for record in run.records]
    assert len(felt) == 9
    assert all(each is not None and each.reading is None for each in felt)
