"""The planner: the cheapest instances that keep a goal, and what it emits."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from cli import main
from cli.up import parse
from headway.cluster import Role
from headway.cost.profile import load_profile
from headway.errors import HeadwayError
from headway.sim.clients import SimRequest
from headway.sim.network import NetworkParams
from headway.sim.records import Record
from headway.sim.spec import Autoscaling
from headway.sim.workload import SloLimits
from planning.plan.candidate import DISAGGREGATED, TOPOLOGIES, Goal, Sizing, parse_goal
from planning.plan.confirm import Confirmed, autoscaled, choose, confirm
from planning.plan.emit import compose, flags, kubernetes
from planning.plan.make import best_plain, make_plan
from planning.plan.report import CapacityPlan, interval, percent, rows, sentences
from planning.plan.search import breaks_at, least, one_less, search
from planning.plan.space import Profiles, Space, make_space
from planning.plan.trial import Outcome, Trial
from services.local.options import WorkerCounts
from tests.fakes.compose_files import COMPOSE, CONFIGS
from tests.fakes.kustomize import render
from tests.fakes.sim_clusters import instance, poisson

PROFILE = instance(Role.UNIFIED, kv_capacity_tokens=60_000).profile
GOAL = Goal(SloLimits(ttft=0.6, tpot=0.04), 0.95)
REQUESTS = poisson(200, 40.0, 1)
PLAN = Sizing("sbs", PROFILE, PROFILE, prefill=2, decode=5, params={"packing": {"order": "boost"}})
ROOT = Path(__file__).resolve().parents[2]


def space(*presets: str) -> Space:
    return make_space(presets, Profiles.same([PROFILE]), TOPOLOGIES, NetworkParams())[0]


def trial(requests: Sequence[SimRequest] = REQUESTS, goal: Goal = GOAL) -> Trial:
    return Trial(requests, goal, NetworkParams())


# --- goals ----------------------------------------------------------------------------


def test_limits_that_are_given_replace_a_scenarios() -> None:
    assert parse_goal("ttft=0.5, attainment=0.9", SloLimits(tpot=0.1)) == Goal(
        SloLimits(ttft=0.5), 0.9
    )
    assert parse_goal("attainment=0.9", SloLimits(tpot=0.1)) == Goal(SloLimits(tpot=0.1), 0.9)


@pytest.mark.parametrize("text", ["itl=0.5", "ttft=soon", "ttft=1,attainment=97", ""])
def test_another_goal_is_refused(text: str) -> None:
    with pytest.raises(HeadwayError, match="--slo"):
        parse_goal(text, SloLimits())


def test_a_request_misses_the_first_limit_that_it_is_over() -> None:
    record = Record("r", 0.0, 10, 0, 3, [], 0.5, 0.5, 0.9, 3, True)
    assert Goal(SloLimits(ttft=0.4, tpot=0.1)).missed(record) == "ttft"
    assert Goal(SloLimits(ttft=0.6, tpot=0.1)).missed(record) == "tpot"
    assert Goal(SloLimits(ttft=0.6, tpot=0.3)).missed(record) == ""
    record.finished = False
    assert Goal(SloLimits(ttft=0.6)).missed(record) == "end"


# --- the search -----------------------------------------------------------------------


@pytest.mark.parametrize("low", range(1, 9))
def test_the_least_number_that_keeps_is_found(low: int) -> None:
    assert least(lambda n: n >= low, 1, 8) == low
    assert least(lambda n: n >= 9, 1, 8) is None
    assert least(lambda n: True, 3, 2) is None


def test_the_cheapest_keeps_the_goal_and_an_instance_less_does_not() -> None:
    tried = trial()
    found = search(tried, space("vllm-like", "sbs"), 12)
    assert found
    assert all(outcome.attainment >= GOAL.attainment for outcome in found)
    best = found[0].candidate
    assert best.num_gpus == min(outcome.candidate.num_gpus for outcome in found)
    smaller = one_less(tried, best)
    assert smaller is None or smaller.attainment < GOAL.attainment


def test_one_prefiller_does_where_its_own_chunk_saves_it_the_base_of_passes() -> None:
    """In chunks of 16 tokens six would be busy."""
    small = replace(PROFILE, chunk_tokens=16, prefill_chunk_tokens=4096)
    tried = trial(goal=Goal(SloLimits(ttft=3.0), 0.9))
    own = make_space(["vllm-like"], Profiles.same([small]), [DISAGGREGATED], NetworkParams())[0]
    assert min(each.candidate.prefill for each in search(tried, own, 8)) == 1


def test_hopeless_candidates_are_given_up_and_repeats_cost_nothing() -> None:
    tried = trial(goal=Goal(SloLimits(ttft=1e-3), 0.99))
    one = Sizing("vllm-like", PROFILE, PROFILE, unified=1)
    outcome = tried.run(one)
    assert not outcome.is_whole
    assert sum(outcome.missed.values()) == 3  # one more than may miss
    tried.run(one)
    assert tried.num_runs == 1
    assert tried.run(one, whole=True).attainment < 0.1


def test_nothing_is_found_where_nothing_keeps_the_goal() -> None:
    assert search(trial(goal=Goal(SloLimits(ttft=1e-3))), space("vllm-like"), 4) == []


def test_a_load_that_grows_breaks_the_goal_somewhere() -> None:
    tried = trial()
    best = search(tried, space("vllm-like"), 12)[0].candidate
    growth, broken = breaks_at(tried, best)
    assert growth >= 1.0
    assert broken.attainment < GOAL.attainment
    assert tried.faster(growth).run(best, whole=True).attainment >= GOAL.attainment


# --- the confirmation -----------------------------------------------------------------


def test_a_finalist_is_confirmed_on_the_cores_with_an_interval() -> None:
    loads = [poisson(100, 6.0, seed) for seed in (1, 2, 3)]
    unified = Sizing("vllm-like", PROFILE, PROFILE, unified=3)
    found = confirm(unified, loads, GOAL, NetworkParams())
    assert len(found.by_seed) == 3
    assert found.attainment == pytest.approx(sum(found.by_seed) / 3)
    assert 0 <= found.error < 0.5
    assert found.mean_gpus == pytest.approx(3)


def test_no_share_is_certain_and_few_parts_say_less() -> None:
    few, more = ([poisson(100, 6.0, seed) for seed in range(1, n + 1)] for n in (1, 3))
    ample = Sizing("vllm-like", PROFILE, PROFILE, unified=8)
    all_kept = [confirm(ample, each, GOAL, NetworkParams()) for each in (few, more)]
    assert [interval(each) for each in all_kept] == ["100.0 (≥ 96.3)", "100.0 (≥ 98.7)"]
    none = confirm(ample, few, Goal(SloLimits(ttft=1e-6)), NetworkParams())
    assert interval(none) == "0.0 (≤ 3.7)"
    short = Goal(SloLimits(ttft=0.03))
    some = [confirm(ample, each, short, NetworkParams()) for each in (few, more)]
    assert some[0].error > some[1].error > 0
    assert interval(some[0]) == f"{percent(some[0].attainment)} ± {percent(some[0].error)}"


def test_who_misses_on_the_cores_gets_another_instance() -> None:
    loads = [poisson(150, 40.0, 1)]
    one = Sizing("vllm-like", PROFILE, PROFILE, unified=1)
    best, done = choose([one], 6, lambda c: confirm(c, loads, GOAL, NetworkParams()), GOAL)
    assert best is not None
    assert best.candidate.unified > 1
    assert [each.candidate.unified for each in done] == list(range(1, best.candidate.unified + 1))


def test_a_plan_says_what_it_found() -> None:
    tried = trial()
    found = search(tried, space("vllm-like", "sbs"), 12)
    plan = make_plan(tried, found, [REQUESTS], 12)
    assert isinstance(plan, CapacityPlan)
    assert any("*" in name for name, *_ in rows(plan))
    said = "\n".join(sentences(plan))
    assert "cheapest: " in said
    assert "breaks first" in said
    assert "with 1 GPU less" in said


def test_a_plan_names_the_best_plain_topology_beside_another_preset() -> None:
    plain = Outcome(Sizing("vllm-like", PROFILE, PROFILE, unified=4), 0.98)
    ours = Outcome(Sizing("sbs", PROFILE, PROFILE, unified=3), 0.99)
    dearer = Outcome(Sizing("vllm-like", PROFILE, PROFILE, prefill=2, decode=3), 0.99)
    found = best_plain([ours, plain, dearer])
    assert found is plain
    best = Confirmed(ours.candidate, 0.99, 0.01, [0.99], 3.0)
    plan = CapacityPlan(GOAL, 1.0, best, best, [best], 1.0, plain, None, plain=found)
    said = "plain, at its best topology: 4U small vllm-like, 4 GPUs: 98.0 % keep the limits"
    assert said in list(sentences(plan))
    own = Confirmed(plain.candidate, 0.98, 0.01, [0.98], 4.0)
    same = replace(plan, best=own, fixed=own)
    assert not any("at its best" in each for each in sentences(same))


def test_an_autoscaled_fleet_costs_less_where_the_load_comes_in_waves() -> None:
    first, second = (poisson(60, 30.0, seed) for seed in (1, 2))
    later = [replace(r, request_id=f"{r.request_id}-2", arrival_at=120 + r.arrival_at)
             for r in second]  # fmt: skip
    profile = load_profile("llama-8b-h100")
    fixed = Sizing("sbs", profile, profile, prefill=2, decode=4)
    run = partial(_confirm, [*first, *later])
    alone = run(fixed, None)
    scaled = autoscaled([alone], 8, run)
    assert [each.bounds and each.bounds.max_decode for each in scaled] == [4, 5]
    assert all(each.num_gpus < alone.num_gpus == 6 for each in scaled)
    assert scaled[0].name == "1-2P+1-4D llama-8b-h100 sbs"
    assert autoscaled([alone], 6, run) == scaled[:1]  # one more of each would be too many
    assert not autoscaled([replace(alone, candidate=fixed.but(convertible=1))], 9, run)


def _confirm(load: Sequence[SimRequest], sizing: Sizing, bounds: Autoscaling | None) -> Confirmed:
    return confirm(sizing, [load], GOAL, NetworkParams(), bounds)


# --- what is emitted ------------------------------------------------------------------


def test_emitted_compose_follows_the_schema_and_names_only_what_exists(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(compose(PLAN, "org/model"))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*command, str(path)], check=True, capture_output=True)
    services = yaml.safe_load(path.read_text())["services"]
    for name, spec in services.items():
        base = COMPOSE["services"][spec.get("extends", {}).get("service", name)]
        fields = set(CONFIGS[base["command"][2]].model_fields)
        variables = spec.get("environment", {})
        assert {v.removeprefix("HEADWAY_").lower() for v in variables} <= fields, name
    workers = [name for name in services if name.startswith("plan-")]
    assert [name.rpartition("-")[0] for name in workers] == ["plan-prefill"] * 2 + [
        "plan-decode"
    ] * 5
    assert services["scheduler"]["environment"]["HEADWAY_SET"] == "packing.order=boost"
    fixed = {name for name, spec in services.items() if spec.get("profiles") == ["fixed"]}
    assert fixed == {"prefill-1", "prefill-2", "decode-1", "decode-2"}


def test_an_emitted_kustomization_renders_to_valid_objects(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "deploy" / "kubernetes", tmp_path / "kubernetes")
    folder = tmp_path / "kubernetes" / "plan"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(kubernetes(PLAN, "org/model"))
    objects = render(folder)
    for each in objects:
        if not each["apiVersion"].startswith("keda.sh"):
            kubernetes_validate.validate(each, "1.30", strict=True)
    scaled = {o["metadata"]["name"]: o["spec"] for o in objects if o["kind"] == "ScaledObject"}
    assert scaled["headway-prefill"]["minReplicaCount"] == 2
    assert scaled["headway-decode"]["maxReplicaCount"] == 5
    (config,) = (
        o for o in objects if o["kind"] == "ConfigMap" and o["metadata"]["name"] == "headway"
    )
    known = {field for service in CONFIGS.values() for field in service.model_fields}
    assert {key.removeprefix("HEADWAY_").lower() for key in config["data"]} <= known
    assert config["data"]["HEADWAY_NUM_DECODE"] == "5"


def test_an_autoscaled_plan_is_emitted_with_its_bounds(tmp_path: Path) -> None:
    profile = load_profile("llama-8b-h100")
    plan, bounds = Sizing("sbs", profile, profile, prefill=1, decode=2), Autoscaling(1, 2, 1, 5)
    shutil.copytree(ROOT / "deploy" / "kubernetes", tmp_path / "kubernetes")
    folder = tmp_path / "kubernetes" / "plan"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(kubernetes(plan, "org/model", bounds))
    objects = render(folder)
    scaled = {o["metadata"]["name"]: o["spec"] for o in objects if o["kind"] == "ScaledObject"}
    (config,) = (
        o["data"] for o in objects if (o["kind"], o["metadata"]["name"]) == ("ConfigMap", "headway")
    )
    assert config["HEADWAY_POLICY"] == "scaling=tokenscale"
    assert config["HEADWAY_MAX_DECODE"] == str(scaled["headway-decode"]["maxReplicaCount"]) == "5"
    assert scaled["headway-prefill"]["minReplicaCount"] == 1
    assert "--autoscale --max-prefill 2 --max-decode 5" in flags(plan, "org/model", bounds)
    with pytest.raises(HeadwayError, match="fixed workers"):
        compose(plan, "org/model", bounds)


def test_unified_workers_are_refused_for_kubernetes() -> None:
    with pytest.raises(HeadwayError, match="no unified workers"):
        kubernetes(Sizing("sbs", PROFILE, PROFILE, unified=2), "model")


def test_emitted_flags_are_those_of_headway_up() -> None:
    words = flags(PLAN, "org/model").split()
    assert words[:2] == ["headway", "up"]
    options = parse(words[2:])
    assert (options.model, options.device, options.policies.preset) == ("org/model", "cuda", "sbs")
    assert options.workers == WorkerCounts(prefill=2, decode=5)
    assert options.service_flags["worker"] == ("--chunk-tokens", str(PROFILE.chunk_tokens))
    assert options.policies.settings == "packing.order=boost"


# --- the command ----------------------------------------------------------------------


def test_the_command_plans_from_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.csv"
    lines = [f"{r.arrival_at},{r.num_prompt_tokens},{r.num_output_tokens}" for r in REQUESTS[:80]]
    trace.write_text("\n".join(["arrival_at,prompt_tokens,output_tokens", *lines]) + "\n")
    out, table = tmp_path / "up.sh", tmp_path / "plan.json"
    arguments = ["--trace", str(trace), "--slo", "ttft=1,tpot=0.05,attainment=0.9"]
    arguments += ["--profiles", "llama-8b-a100", "--max-gpus", "8", "--seeds", "1"]
    arguments += ["--emit", "flags", "--out", str(out), "--json", str(table)]
    assert main(["plan", *arguments]) == 0
    said = capsys.readouterr().out
    assert "cheapest: " in said
    assert "MODEL stands for your model" in said
    assert out.read_text().startswith("headway up --model MODEL")
    assert json.loads(table.read_text())["gpus"] >= 1


def test_an_order_that_views_do_not_have_is_not_planned(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--trace", "chat-and-reasoning", "--presets", "pascal"]) == 1
    assert "batching pascal" in capsys.readouterr().err
