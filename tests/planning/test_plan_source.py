"""Take from a trace or a scenario what ``headway simulate`` takes, and try what a plan may."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from cli import main
from headway.cost.profile import load_profile
from headway.errors import HeadwayError
from headway.sim.clients import SimRequest
from headway.sim.network import NetworkParams
from headway.sim.records import Record
from headway.sim.summary import keeps
from planning.plan.candidate import DISAGGREGATED, TOPOLOGIES, UNIFIED, parse_goal
from planning.plan.load import busiest, different_loads
from planning.plan.source import PlanSource, read_source
from planning.plan.space import Profiles, Space, make_space

SCENARIO = """
[[instances]]
role = "prefill"
profile = "qwen-32b-h100-96"
chunk_tokens = 4096

[[instances]]
role = "decode"
profile = "qwen-32b-h100-96"

[network]
bytes_per_s = 3e9

[workload]
rate = 4.0
num_requests = 60

[[workload.classes]]
name = "chat"
prompt = { distribution = "lognormal", median = 400, sigma = 1.0 }
answer = 50

[[workload.classes]]
name = "think"
prompt = 100
reasoning = 100
answer = 50
slo = { ttfat = 1.0, ttfat_per_reasoning_token = 0.05 }

[slo]
ttft = 2.0
"""
LINES = ["arrival_at,prompt_tokens,output_tokens", *(f"{n / 9},90,9" for n in range(60))]


def scenario(folder: Path, more: str = "", text: str = SCENARIO) -> PlanSource:
    path = folder / "scenario.toml"
    path.write_text(text + more)
    return read_source(str(path))


def trace(folder: Path) -> Path:
    path = folder / "trace.csv"
    path.write_text("\n".join(LINES) + "\n")
    return path


def space_of(source: PlanSource, *presets: str) -> tuple[Space, str]:
    space, notes = make_space(presets, source.profiles, TOPOLOGIES, source.network)
    return space, "\n".join(notes)


# --- what is judged -------------------------------------------------------------------


@pytest.mark.parametrize("first_at", [0.5, 1.5, 3.0])
@pytest.mark.parametrize("name", ["chat-0", "think-7"])
def test_a_request_is_judged_by_its_class_as_simulate_judges_it(
    name: str, first_at: float, tmp_path: Path
) -> None:
    source = scenario(tmp_path)
    goal = parse_goal("ttft=1,tpot=0.5", source.slo, source.slo_of)
    answers_at = first_at + 3.0
    record = Record(name, 0.0, 9, 100, 150, [], first_at, answers_at, answers_at + 2, 150, True)
    own = source.workload.slo_of(name)
    assert (own is None) == (name == "chat-0")
    assert (not goal.missed(record)) == keeps(record, own or goal.slo)
    assert goal.missed(record) == ("" if own or first_at <= 1 else "ttft")
    record.first_answer_at = 6.1  # over 1 s and 100 times 0.05 s
    assert goal.missed(record) == ("ttfat" if own else "ttft" if first_at > 1 else "")


def test_classes_with_limits_of_their_own_need_no_others(tmp_path: Path) -> None:
    source = scenario(tmp_path, text=SCENARIO.partition("[slo]")[0])
    assert parse_goal("", source.slo, source.slo_of).slo_of == source.slo_of
    assert "think" in "\n".join(source.notes)
    with pytest.raises(HeadwayError, match="--slo"):
        parse_goal("", source.slo)


# --- what is taken --------------------------------------------------------------------


def test_a_scenario_keeps_its_network_and_a_trace_has_the_slowest_link(tmp_path: Path) -> None:
    assert scenario(tmp_path).network == NetworkParams(bytes_per_s=3e9)
    names = "llama-8b-h100,llama-8b-a100"
    slowest = load_profile("llama-8b-a100").link_bytes_per_s
    assert read_source(str(trace(tmp_path)), names).network.bytes_per_s == slowest


def test_roles_keep_the_settings_that_a_scenario_gives_them(tmp_path: Path) -> None:
    source = scenario(tmp_path)
    assert [each.chunk_tokens for each in source.profiles.fronts] == [4096]
    assert [each.chunk_tokens for each in source.profiles.backs] == [2048]
    space, notes = space_of(source, "sbs")
    ((base, topologies),) = space.bases()
    assert (base.front.chunk_tokens, base.back.chunk_tokens) == (4096, 2048)
    assert list(topologies) == [DISAGGREGATED]
    assert "chunk_tokens (4096, 2048)" in notes


def test_two_profiles_of_one_name_are_refused(tmp_path: Path) -> None:
    other = SCENARIO.replace('"decode"', '"prefill"')
    with pytest.raises(HeadwayError, match=r"qwen-32b-h100-96.*chunk_tokens"):
        scenario(tmp_path, text=other)
    both = scenario(tmp_path, text=other.replace("chunk_tokens = 4096", ""))
    assert len(both.profiles.fronts) == 1
    assert both.profiles.backs == both.profiles.fronts


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ('[policy]\nbatching = "trail"', "policy"),
        ("[set.dispatch]\nwindow = 16", "set"),
        ("[limits]\nmax_waiting = 5", "limits"),
        ("[predictor]", "predictor"),
        ('[[failures]]\ninstance = "decode-2"\nat = 3.0', "failures"),
        ("[autoscale]\nmax_prefill = 3", "autoscale"),
    ],
)
def test_what_a_plan_does_not_use_of_a_scenario_is_said(
    more: str, named: str, tmp_path: Path
) -> None:
    (note,) = scenario(tmp_path, more).notes[1:]
    assert f"not used of the scenario: {named} " in note
    two = scenario(tmp_path, text=f"gateways = 2\n{SCENARIO}")
    assert "gateways" in two.notes[-1]
    assert not any("not used" in each for each in scenario(tmp_path).notes)


def test_a_host_that_instances_share_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=r"network.hops.cores is 4.*headway simulate"):
        scenario(tmp_path, "[network.hops]\ncores = 4")


def test_seeds_that_give_the_same_requests_count_once(tmp_path: Path) -> None:
    replayed = read_source(str(trace(tmp_path)), "llama-8b-h100").workload
    assert len(different_loads(replayed, 3, 50)) == 1
    assert len(different_loads(scenario(tmp_path).workload, 3, 50)) == 3


def test_a_recording_is_planned_for_where_it_is_busiest() -> None:
    instants = [0.0, 10.0, 20.0, 21.0, 22.0, 30.0, 31.0, 32.0, 50.0]
    asked = [SimRequest(f"request-{n}", at, 10 + n, 5) for n, at in enumerate(instants)]
    found = busiest(asked, 3)
    assert [each.num_prompt_tokens for each in found.requests] == [12, 13, 14]
    assert [each.arrival_at for each in found.requests] == [0.0, 1.0, 2.0]
    assert "busiest 3 of 9 requests: 1.00/s from 20 s to 22 s; all of them come at 0.16/s" in (
        found.sentence()
    )
    assert busiest(asked, 9).sentence() == ""
    assert list(busiest(asked, 100).requests) == asked


def test_a_plan_reads_the_busiest_stretch_of_a_trace_and_the_first_that_a_scenario_draws(
    tmp_path: Path,
) -> None:
    file = tmp_path / "trace.csv"
    rows = [f"{at},10,{tokens}" for at, tokens in ((0, 1), (9, 2), (10, 3), (30, 4))]
    file.write_text("\n".join(("arrival_at,prompt_tokens,output_tokens", *rows)), "utf-8")
    (load,) = different_loads(read_source(str(file), "llama-8b-h100").workload, 3, 2)
    assert isinstance(load, list)
    assert [(each.arrival_at, each.num_output_tokens) for each in load] == [(0.0, 2), (1.0, 3)]
    drawn = scenario(tmp_path).workload
    first = different_loads(drawn, 1, 50)[0]
    assert isinstance(first, list)
    assert [each.arrival_at for each in first] == [
        each.arrival_at for each in islice(drawn.requests(1), 50)
    ]


# --- what may be tried ----------------------------------------------------------------


def test_a_preset_that_views_have_not_on_unified_instances_is_tried_on_the_others() -> None:
    profiles = Profiles.same([load_profile("llama-8b-h100")])
    presets = "sbs", "headway", "uniboost"
    space, notes = make_space(presets, profiles, TOPOLOGIES, NetworkParams())
    tried = {base.preset: list(topologies) for base, topologies in space.bases()}
    assert tried == {
        "sbs": [UNIFIED, DISAGGREGATED],
        "headway": [DISAGGREGATED],
        "uniboost": [DISAGGREGATED],
    }
    assert [note.partition(":")[0] for note in notes] == ["headway", "uniboost"]
    with pytest.raises(HeadwayError, match="headway simulate --preset headway"):
        make_space(["headway"], profiles, [UNIFIED], NetworkParams())


def test_a_refusal_names_no_option_that_the_command_lacks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "--trace", "chat-and-reasoning", "--presets", "pascal"]) != 0
    said = capsys.readouterr().err
    assert "batching pascal" in said
    assert "--presets" in said
    assert "--fidelity" not in said
