"""Scenarios: what they say, and how they refuse what they cannot be."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli import main
from headway.core.defaults import REPORT_INTERVAL, SIMULATED_REPORT_INTERVAL
from headway.core.worker.settings import WorkerSettings
from headway.errors import HeadwayError
from headway.presets import PRESETS
from headway.sim.clients import SimRequest
from headway.sim.experiment import cluster_spec, simulate
from headway.sim.hop_costs import HopCosts
from headway.sim.hops import hops_text, load_hops
from headway.sim.records import Record
from headway.sim.scenario import load_scenario, parse_scenario, scenario_names
from headway.sim.sessions import SessionLoad
from headway.sim.summary import keeps, summarise
from headway.sim.workload import SloLimits
from headway.workload.lengths import parse_lengths
from tests.fakes.small_scenario import SMALL, dies


@pytest.mark.parametrize("name", scenario_names())
def test_every_ready_made_scenario_can_be_read_and_drawn_from(name: str) -> None:
    workload = load_scenario(name).workload
    first, again, other = (_beginning(workload.load(seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def _beginning(load: Iterable[SimRequest] | SessionLoad) -> list[object]:
    each: Iterable[object] = load.sessions if isinstance(load, SessionLoad) else load
    return list(islice(each, 20))


def test_a_scenario_says_what_runs_and_what_is_asked() -> None:
    scenario = parse_scenario(SMALL, "test")
    ((instance, count),) = scenario.conditions.instances
    assert (count, instance.profile.chunk_tokens) == (2, 512)
    requests = list(scenario.workload.requests(1))
    assert len(requests) == 40
    thinking = [r for r in requests if r.request_id.startswith("think")]
    assert thinking
    assert all(r.num_output_tokens == r.num_reasoning_tokens + 20 for r in thinking)
    assert all(r.num_reasoning_tokens == 0 for r in requests if r not in thinking)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('role = "unified"', 'role = "both"', "instances.role is 'both'; it must be one of"),
        ("count = 2", "count = 0", "instances.count is 0"),
        ("count = 2", "colour = 2", "a key of instances is 'colour'"),
        ('profile = "llama-8b-a100"', 'profile = "llama-9b"', "there is no profile 'llama-9b'"),
        ("rate = 5.0", "rate = -1.0", "workload.rate is -1.0"),
        ("rate = 5.0", 'rate = "fast"', "workload.rate is 'fast'; it must be a number"),
        ("num_requests = 40", "", "workload.num_requests is None; it must be given"),
        ('"exponential"', '"normal"', "prompt.distribution is 'normal'; it must be one of"),
        ("mean = 200", "mean = 0", "mean is 0.0; it must be over 0"),
        ("mean = 200", "median = 200", "a key of workload.classes.prompt is 'median'"),
        ("prompt = 100", "prompt = -5", "classes.prompt: value is -5.0; it must be 0 or more"),
        ("low = 5", "low = -5", "classes.answer: low is -5.0; it must be 0 or more"),
        ("sigma = 0.5", "sigma = -1", "sigma is -1.0; it must be from 0 to 20"),
        ("sigma = 0.5", "sigma = 1e9", "sigma is 1000000000.0; it must be from 0 to 20"),
        ("median = 50", "median = 1e300", "median is 1e+300; it must be from 0 to 1.07374e+09"),
        ('"think"', '"chat"', "workload.classes.name is 'chat'; it must be a name of its own"),
        ("share = 0.5", "tenant_share = -1", "workload.classes.tenant_share is -1.0; it must be"),
        ("ttft = 0.5", "ttft = 0", "slo.ttft is 0"),
        ("[slo]", "[slo", "is not TOML"),
        ("[slo]", "x = " + "1" * 5000 + "\n[slo]", "is not TOML"),
        ("[slo]", "x = " + "[" * 5000 + "]" * 5000 + "\n[slo]", "in too many others"),
        ("= 512", '= "x"', "instances.chunk_tokens is 'x'; it must be a whole number"),
        ("= 512", "= 100.5", "instances.chunk_tokens is 100.5; it must be a whole number"),
        ("chunk_tokens = 512", "num_gpus = true", "instances.num_gpus is True; it must be a whole"),
        ("chunk_tokens = 512", 'start_up = "5"', "instances.start_up is '5'; it must be a number"),
        ('name = "small"', "report_interval = 0", "report_interval is 0.0; it must be from 0.001"),
        ('name = "small"', "report_interval = nan", "report_interval is nan; it must be from"),
        ("[slo]", "[predictor]\nerrors = 3\n[slo]", "predictor.errors is 3; it must be a list"),
        ("[slo]", '[predictor]\nerrors = ["x"]\n[slo]', "errors is ['x']; it must be a list of"),
        ("[slo]", "[predictor]\ngenerated = [0.5]\n[slo]", "it must be a list of whole numbers"),
        ("[slo]", "[predictor]\ninterval = 2.5\n[slo]", "predictor.interval is 2.5"),
        ("[slo]", "[predictor]\naway = true\n[slo]", "predictor.away is True; it must be a number"),
        ("[slo]", dies("decode-99"), "is 'decode-99'; it must be one of unified-1, unified-2"),
        ("[slo]", dies("unified-3"), "failures.instance is 'unified-3'; it must be one of"),
        ("[slo]", dies("gateway"), "is 'gateway'; it must be a gateway that leaves another (1 in"),
        ("[slo]", dies("gateway-9"), "failures.instance is 'gateway-9'; it must be a gateway"),
        ("[slo]", dies("unified-1", "unified-1"), "failures.instance is 'unified-1'; it must be n"),
    ],
)
def test_what_is_wrong_is_refused_by_name_value_and_limit(old: str, new: str, said: str) -> None:
    with pytest.raises(HeadwayError) as refused:
        parse_scenario(SMALL.replace(old, new), "test")
    assert said in refused.value.message
    assert "scenario test" in refused.value.message


def test_an_unknown_scenario_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        HeadwayError, match="agents, agents-2p2d, chat-and-reasoning, chats-dp8, prefill"
    ):
        load_scenario("nowhere")


@given(
    st.sampled_from(
        [
            {"distribution": "uniform", "low": 3, "high": 9},
            {"distribution": "exponential", "mean": 50},
            {"distribution": "lognormal", "median": 50, "sigma": 2},
            {"distribution": "beta", "scale": 90, "a": 1, "b": 2},
        ]
    ),
    st.integers(1, 40),
    st.integers(40, 60),
    st.integers(0, 1000),
)
def test_lengths_stay_within_their_bounds(
    table: dict[str, object], low: int, high: int, seed: int
) -> None:
    draw = parse_lengths("prompt", {**table, "min": low, "max": high})
    assert all(low <= draw(random.Random(seed + n)) <= high for n in range(20))


def test_a_request_keeps_its_slo_if_it_ended_within_every_limit() -> None:
    record = Record("r", 0.0, 1, 0, 3, finished=True, first_token_at=0.4, last_token_at=0.6)
    record.num_tokens = 3
    assert keeps(record, SloLimits(ttft=0.5, tpot=0.2))
    assert not keeps(record, SloLimits(ttft=0.3))
    assert not keeps(record, SloLimits(tpot=0.05))
    record.finished = False
    assert not keeps(record, SloLimits())


def test_the_command_shows_presets_side_by_side_and_explains_a_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "small.toml", tmp_path / "out"
    file.write_text(SMALL)
    table = tmp_path / "table.json"
    arguments = [str(file), "--out", str(out), "--json", str(table), "--processes", "1"]
    assert main(["simulate", *arguments]) == 0
    shown = capsys.readouterr().out
    assert "vllm-like" in shown
    assert "sbs" in shown
    assert '"attainment"' in table.read_text()
    assert len((out / "sbs-1" / "requests.jsonl").read_text().splitlines()) == 40
    request_id = (out / "sbs-1" / "requests.jsonl").read_text().split('"')[3]
    assert main(["explain", request_id, "--run", str(out / "sbs-1")]) == 0
    assert "dispatch by" in capsys.readouterr().out
    assert main(["explain", "nobody", "--run", str(out / "sbs-1")]) == 2
    assert main(["explain", "nobody", "--run", str(out)]) == 2
    assert "headway simulate" in capsys.readouterr().err


def test_the_command_takes_hop_costs_and_autoscales(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, hops, table = (tmp_path / name for name in ("small.toml", "hops.toml", "table.json"))
    pools = SMALL.replace('"unified"\ncount = 2', '"prefill"').replace(
        "[workload]", '[[instances]]\nrole = "decode"\nprofile = "llama-8b-a100"\n[workload]'
    )
    file.write_text(pools)
    hops.write_text(hops_text(HopCosts(gateway=1.0)))
    arguments = ["simulate", str(file), "--preset", "tokenscale", "--json", str(table)]
    assert main([*arguments, "--processes", "1"]) == 0
    (before,) = json.loads(table.read_text())
    assert main([*arguments, "--hops", str(hops), "--autoscale", "--processes", "1"]) == 0
    (after,) = json.loads(table.read_text())
    assert after["ttft_p50"] >= before["ttft_p50"] + 0.9
    assert after["gpu_seconds"] != pytest.approx(before["gpu_seconds"], rel=0.2)
    assert "lost" not in capsys.readouterr().out
    file.write_text(pools + "[limits]\nrequest_timeout = 0.5\n")
    assert main([*arguments, "--processes", "1"]) == 0
    assert "lost" in capsys.readouterr().out


def test_workers_report_as_often_as_a_scenario_says() -> None:
    text = SMALL.replace('name = "small"', f"report_interval = {REPORT_INTERVAL}")
    live, default = (
        cluster_spec(PRESETS["sbs"], parse_scenario(each, "test").conditions).worker
        for each in (text, SMALL)
    )
    assert live.report_interval == WorkerSettings().report_interval == REPORT_INTERVAL
    assert default.report_interval == SIMULATED_REPORT_INTERVAL


# --- bursts, traces, failures, SLOs of classes --------------------------------------------


def test_arrivals_may_come_in_bursts() -> None:
    text = SMALL.replace("rate = 5.0", 'rate = 5.0\nprocess = "bursts"\nburst_factor = 4.0')
    workload = parse_scenario(text, "test").workload
    assert workload.bursts.factor == 4.0
    assert list(workload.requests(1)) == list(workload.requests(1))


def test_a_trace_gives_arrivals_and_lengths(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_at,prompt_tokens,output_tokens\n3,10,5\n5,20,6\n")
    head, _, _ = SMALL.partition("[workload]")
    workload = parse_scenario(f'{head}[workload]\ntrace = "{trace}"', "test").workload
    found = [(r.arrival_at, r.num_prompt_tokens, r.num_output_tokens) for r in workload.requests(1)]
    assert found == [(0.0, 10, 5), (2.0, 20, 6)]
    faster = parse_scenario(f'{head}[workload]\ntrace = "{trace}"\nrate = 1.0', "test").workload
    assert [r.arrival_at for r in faster.requests(1)] == [0.0, 1.0]


def test_a_trace_that_is_not_there_is_named() -> None:
    head, _, _ = SMALL.partition("[workload]")
    with pytest.raises(HeadwayError, match=r"/nowhere\.csv"):
        parse_scenario(f'{head}[workload]\ntrace = "/nowhere.csv"', "test")


def lost_under(limits: str) -> tuple[float, set[str]]:
    """The share of requests lost, and why, at 50 times the load."""
    text = SMALL.replace("rate = 5.0", "rate = 250.0").replace("num_requests = 40", "seconds = 1")
    scenario = parse_scenario(f"{text}[limits]\n{limits}", "test")
    run = simulate(
        cluster_spec(PRESETS["vllm-like"], scenario.conditions), scenario.workload.requests(1)
    )
    row = summarise(run, scenario.slo, scenario.workload.slo_of)
    assert row["attainment"] <= 1 - row["lost"]
    return row["lost"], {record.error for record in run.records if not record.finished}


def test_overload_is_refused_and_counts_against_the_slo() -> None:
    lost, reasons = lost_under("max_waiting = 20")
    assert 0.1 < lost < 1
    assert all("at most 20 may" in reason for reason in reasons)


def test_a_request_ends_at_its_deadline() -> None:
    lost, reasons = lost_under("request_timeout = 1.0")
    assert 0.1 < lost < 1
    assert all("took over 1 s" in reason for reason in reasons)


def test_without_limits_overload_is_latency() -> None:
    none = "max_waiting = 0\nrequest_timeout = 0\nflow_control_cycles = 0"
    assert lost_under(none) == (0.0, set())


def test_limits_are_those_of_the_live_services_unless_given() -> None:
    spec = cluster_spec(PRESETS["sbs"], parse_scenario(SMALL, "test").conditions)
    assert (spec.gateway.max_waiting, spec.gateway.request_timeout) == (4096, 600.0)
    assert spec.scheduler.flow_control.num_cycles == 500
    with pytest.raises(HeadwayError, match=r"limits\.max_waiting is -1"):
        parse_scenario(SMALL + "[limits]\nmax_waiting = -1\n", "test")


def test_instances_have_host_memory_by_the_live_options_name() -> None:
    text = SMALL.replace("chunk_tokens = 512", "host_kv_gib = 4\nnum_units = 2")
    ((kind, _),) = parse_scenario(text, "test").conditions.instances
    assert kind.profile.host_capacity_tokens == 4 * 2**30 // 131_072 // 2
    with pytest.raises(HeadwayError, match="host_kv_gib is -4"):
        parse_scenario(text.replace("= 4", "= -4"), "test")


def test_hop_costs_come_from_a_table_or_from_a_file(tmp_path: Path) -> None:
    hops = HopCosts(gateway=0.004, cores=2, prefill_beside=0.5)
    (tmp_path / "hops.toml").write_text(hops_text(hops))
    assert load_hops(tmp_path / "hops.toml") == hops
    named = parse_scenario(SMALL + '[network]\nhops = "hops.toml"\n', "test", tmp_path)
    costs = "[network.hops]\ngateway = 0.004\ncores = 2\nprefill_beside = 0.5\n"
    table = parse_scenario(SMALL + costs, "test")
    assert named.conditions.network.costs == table.conditions.network.costs == hops
    with pytest.raises(HeadwayError, match=r"network\.hops\.token is -1"):
        parse_scenario(SMALL + "[network.hops]\ntoken = -1\n", "test")
    with pytest.raises(HeadwayError, match=r"other\.toml cannot be read"):
        parse_scenario(SMALL + '[network]\nhops = "other.toml"\n', "test", tmp_path)


def test_a_class_may_have_its_own_slo() -> None:
    text = SMALL.replace(
        "reasoning = {", "slo = { ttfat = 2.0, ttfat_per_reasoning_token = 0.05 }\nreasoning = {"
    )
    workload = parse_scenario(text, "test").workload
    slo = workload.slo_of("think-7")
    assert slo is not None
    assert workload.slo_of("chat-3") is None
    record = Record("think-7", 0.0, 10, 100, 110, finished=True)
    record.first_answer_at = 6.9
    assert keeps(record, slo)
    record.first_answer_at = 7.1
    assert not keeps(record, slo)


def with_classes(text: str = SMALL) -> str:
    """The small scenario, whose chats are prompt and whose thinkers have no promise to lose."""
    named = text.replace('name = "chat"', 'name = "chat"\ntenant = "ann"\nclass = "prompt"')
    named = named.replace('name = "think"', 'name = "think"\nclass = "slow"')
    return (
        f'{named}[[classes]]\nname = "prompt"\nttft = 1e-6\n'
        '[[classes]]\nname = "slow"\nttft = 3600.0\nyields = true\n'
    )


def test_requests_have_tenants_and_service_classes_and_promises_are_counted() -> None:
    scenario = parse_scenario(with_classes(), "test")
    workload = scenario.workload
    requests = {r.request_id: r.standing for r in workload.requests(1)}
    assert {s.tenant for name, s in requests.items() if name.startswith("chat")} == {"ann"}
    yields = {s.service.yields for s in requests.values() if s.service is not None}
    assert yields == {True, False}
    spec = cluster_spec(PRESETS["headway"], scenario.conditions)
    run = simulate(spec, workload.requests(1))
    row = summarise(run, scenario.slo, workload.slo_of, service_of=workload.service_of)
    assert row["kept_of_slow"] == 1.0
    assert row["kept_of_prompt"] == 0.0


def test_a_scenario_without_classes_of_its_own_may_name_the_shipped_ones() -> None:
    text = SMALL.replace('name = "chat"', 'name = "chat"\nclass = "batch"')
    service = parse_scenario(text, "test").workload.service_of("chat-3")
    assert service is not None
    assert service.yields
    with pytest.raises(HeadwayError, match=r"class is 'gold'.*interactive, agent, batch"):
        parse_scenario(text.replace("batch", "gold"), "test")


def test_simulate_prints_the_promises_that_were_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "classes.toml"
    file.write_text(with_classes())
    assert main(["simulate", str(file), "--preset", "sbs", "--processes", "1"]) == 0
    shown = capsys.readouterr().out
    assert "kept %" in shown
    assert {"prompt", "slow"} <= set(shown.split())
