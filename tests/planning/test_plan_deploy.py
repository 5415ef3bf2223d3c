"""Emit what was simulated; refuse what a target cannot say, with the way out."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli import command_line, main
from cli.up import cluster_options
from headway.cluster import Role
from headway.cost.profile import load_profile, save_profile
from headway.cost.schema import Profile
from headway.errors import HeadwayError
from headway.sim.network import NetworkParams
from planning.plan.candidate import DISAGGREGATED, TOPOLOGIES, UNIFIED, Sizing
from planning.plan.deploy import emit, refuse_all
from planning.plan.emit import EMITTERS
from planning.plan.space import Profiles, make_space
from services.local.options import process_specs
from services.runtime.config import read_config
from services.worker.config import WorkerConfig
from tests.fakes.compose_files import COMPOSE, CONFIGS
from tests.fakes.kustomize import render

H100 = load_profile("llama-8b-h100")
SMALL_CHUNK = replace(H100, chunk_tokens=2048)
MINE = replace(H100, name="mine")
ROOT = Path(__file__).resolve().parents[2]


def pair(front: Profile = H100, back: Profile = H100, **counts: int) -> Sizing:
    return Sizing("sbs", front, back).but(**(counts or {"prefill": 1, "decode": 2}))


def emitted(target: str, plan: Sizing, files: dict[str, str] | None = None) -> str:
    return emit(target, plan, "org/model", None, files or {})


# --- what is said ---------------------------------------------------------------------


def test_the_flags_give_every_worker_the_chunk_and_the_units_of_the_plan() -> None:
    units = replace(H100, num_units=2)
    words = shlex.split(emitted("flags", pair(units, units)))
    parser = command_line()
    args, service_flags = parser.parse_known_args(words[1:])
    specs = process_specs(cluster_options(args, service_flags), 4, 3)
    workers = [read_config(WorkerConfig, each.flags) for each in specs if each.service == "worker"]
    assert [each.role for each in workers] == ["prefill", "decode", "decode"]
    assert {(each.chunk_tokens, each.dp, each.profile) for each in workers} == {
        (H100.chunk_tokens, 2, H100.name)
    }


@pytest.mark.parametrize("of_others", [4096, None])
def test_a_role_has_its_own_chunk_whatever_it_is_deployed_by(of_others: int | None) -> None:
    """A prefiller's and a convertible's; the scheduler sends the chunk of all others at once."""
    longer, others = (replace(SMALL_CHUNK, prefill_chunk_tokens=n) for n in (4096, of_others))
    plan = pair(longer, others, prefill=1, decode=1, convertible=1)
    words = shlex.split(emitted("flags", plan))
    args, service_flags = command_line().parse_known_args(words[1:])
    specs = process_specs(cluster_options(args, service_flags), 4, 3)
    own = H100.convertible_chunk_tokens
    for config in (read_config(WorkerConfig, x.flags) for x in specs if x.service == "worker"):
        chunks = config.prefill_chunk_tokens, config.convertible_chunk_tokens
        assert (config.chunk_tokens, *chunks) == (2048, 4096, own)
    prefill = yaml.safe_load(emitted("compose", plan))["services"]["plan-prefill-1"]
    longer_chunk = prefill["environment"]["HEADWAY_PREFILL_CHUNK_TOKENS"]
    assert (prefill["environment"]["HEADWAY_CHUNK_TOKENS"], longer_chunk) == ("2048", "4096")


def test_the_flags_say_a_chunk_of_prefillers_that_the_profile_has_otherwise(tmp_path: Path) -> None:
    """Also the usual one: workers would have that of the file."""
    file = tmp_path / "mine.toml"
    save_profile(replace(MINE, chunk_tokens=2048, prefill_chunk_tokens=4096), file)
    tried = replace(MINE, chunk_tokens=2048, prefill_chunk_tokens=2048)
    words = shlex.split(emitted("flags", pair(tried, tried), {"mine": str(file)}))
    args, service_flags = command_line().parse_known_args(words[1:])
    specs = process_specs(cluster_options(args, service_flags), 4, 3)
    configs = (read_config(WorkerConfig, x.flags) for x in specs if x.service == "worker")
    assert {config.prefill_chunk_tokens for config in configs} == {2048}


def test_the_flags_name_the_file_of_a_profile(tmp_path: Path) -> None:
    file = tmp_path / "my profile.toml"
    save_profile(MINE, file)
    words = shlex.split(emitted("flags", pair(MINE, MINE), {"mine": str(file)}))
    assert load_profile(words[words.index("--profile") + 1]) == MINE


def test_every_role_has_its_own_chunk_in_compose() -> None:
    plan = pair(H100, SMALL_CHUNK, prefill=1, decode=2, convertible=1)
    services = yaml.safe_load(emitted("compose", plan))["services"]
    chunks = {
        role: services[f"plan-{role}-1"]["environment"]["HEADWAY_CHUNK_TOKENS"]
        for role in ("prefill", "decode", "convertible")
    }
    own = str(H100.convertible_chunk_tokens)
    assert chunks == {"prefill": "8192", "decode": "2048", "convertible": own}


def test_every_worker_has_a_gpu_and_a_name_of_its_own_in_compose() -> None:
    plan = pair(H100, SMALL_CHUNK, prefill=2, decode=2, convertible=1)
    services = yaml.safe_load(emitted("compose", plan))["services"]
    workers = {name: each for name, each in services.items() if name.startswith("plan-")}
    devices = [each["deploy"]["resources"]["reservations"]["devices"] for each in workers.values()]
    assert [device["device_ids"] for (device,) in devices] == [["0"], ["1"], ["2"], ["3"], ["4"]]
    assert [each["environment"]["HEADWAY_SERVICE_ID"] for each in workers.values()] == [*workers]
    assert not any("replicas" in each["deploy"] for each in workers.values())


def test_every_service_reads_what_compose_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = pair(H100, SMALL_CHUNK, prefill=1, decode=2, convertible=1)
    services = yaml.safe_load(emitted("compose", plan))["services"]
    for name, each in services.items():
        if each.get("profiles"):
            continue
        base = COMPOSE["services"][each.get("extends", {}).get("service", name)]
        with monkeypatch.context() as patched:
            for key, value in {**base["environment"], **each["environment"]}.items():
                patched.setenv(key, re.sub(r"\$\{\w+(?::-([^}]*)|[^}]*)\}", r"\1", str(value)))
            config = read_config(CONFIGS[base["command"][2]], [])
        assert config.service_id == name
        if isinstance(config, WorkerConfig):
            role = name.split("-")[1]
            chunk = plan.deployed(Role(role)).chunk_tokens
            assert (config.role, config.device, config.chunk_tokens) == (role, "cuda", chunk)
            assert (config.model, config.profile) == ("org/model", H100.name)


def test_every_role_has_its_own_chunk_in_kubernetes(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "deploy" / "kubernetes", tmp_path / "kubernetes")
    folder = tmp_path / "kubernetes" / "plan"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(emitted("kubernetes", pair(H100, SMALL_CHUNK)))
    workers = {
        each["metadata"]["name"]: _environment(each)
        for each in render(folder)
        if each["kind"] == "Deployment"
    }
    prefill, decode = workers["headway-prefill"], workers["headway-decode"]
    assert (prefill["HEADWAY_ROLE"], decode["HEADWAY_ROLE"]) == ("prefill", "decode")
    chunks = prefill["HEADWAY_CHUNK_TOKENS"], decode["HEADWAY_CHUNK_TOKENS"]
    assert chunks == ("8192", "2048")


def test_every_service_reads_what_a_kustomization_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "deploy" / "kubernetes", tmp_path / "kubernetes")
    folder = tmp_path / "kubernetes" / "plan"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(emitted("kubernetes", pair(H100, SMALL_CHUNK)))
    objects = render(folder)
    shared = {o["metadata"]["name"]: o["data"] for o in objects if o["kind"] == "ConfigMap"}
    read = {}
    for each in objects:
        if each["kind"] not in ("Deployment", "StatefulSet"):
            continue
        (container,) = each["spec"]["template"]["spec"]["containers"]
        module = next((word for word in container.get("command", ()) if word in CONFIGS), "")
        if not module:
            continue
        with monkeypatch.context() as patched:
            for key, value in {**shared["headway"], **_environment(each)}.items():
                secret = "redis://store" if key == "HEADWAY_STORE" else "one"
                patched.setenv(key, value or secret)
            read[each["metadata"]["name"]] = read_config(CONFIGS[module], [])
    assert {"headway-gateway", "headway-scheduler", "headway-autoscaler"} <= read.keys()
    chunks = {
        name.removeprefix("headway-"): (config.chunk_tokens, config.device)
        for name, config in read.items()
        if isinstance(config, WorkerConfig)
    }
    assert chunks["prefill"] == (8192, "cuda")
    assert chunks["decode"] == (2048, "cuda")


def _environment(deployment: dict[str, Any]) -> dict[str, str]:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each.get("value", "") for each in container.get("env", ())}


# --- what is refused ------------------------------------------------------------------

TENSOR_PARALLEL = load_profile("llama-70b-tp4-h100")
A100 = load_profile("llama-8b-a100")


@pytest.mark.parametrize(
    ("targets", "plan", "reason"),
    [
        (
            EMITTERS,
            pair(H100, A100),
            r"\(llama-8b-h100, llama-8b-a100\).*--profiles of a single one",
        ),
        (EMITTERS, pair(TENSOR_PARALLEL, TENSOR_PARALLEL), "torchrun"),
        (EMITTERS, pair(TENSOR_PARALLEL, TENSOR_PARALLEL, unified=1), "torchrun"),
        (EMITTERS, pair(MINE, MINE), "--profiles FILE"),
        (
            EMITTERS,
            pair(*[replace(H100, kv_capacity_tokens=99_999)] * 2),
            r"changes kv_capacity_tokens \(99999, 410000\)",
        ),
        (["flags"], pair(H100, SMALL_CHUNK), "2048 and 8192.*--emit compose or kubernetes"),
        (["kubernetes"], pair(unified=2), "--topologies disaggregated"),
    ],
)
def test_what_a_target_cannot_say_is_refused(targets: list[str], plan: Sizing, reason: str) -> None:
    for target in targets:
        with pytest.raises(HeadwayError, match=reason):
            emitted(target, plan)


@pytest.mark.parametrize("target", ["compose", "kubernetes"])
def test_containers_have_no_files_of_profiles(target: str) -> None:
    with pytest.raises(HeadwayError, match=r"mine.toml.*--emit flags"):
        emitted(target, pair(MINE, MINE), {"mine": "mine.toml"})


def test_a_target_is_refused_before_the_search_if_nothing_can_be_said() -> None:
    def refuse(target: str, *profiles: Profile, only: str = "") -> None:
        topologies = [only] if only else TOPOLOGIES
        space, _ = make_space(["sbs"], Profiles.same(profiles), topologies, NetworkParams())
        refuse_all(target, space, {})

    refuse("kubernetes", H100)  # prefillers and decoders may win
    refuse("flags", TENSOR_PARALLEL, H100)
    with pytest.raises(HeadwayError, match="torchrun"):
        refuse("flags", TENSOR_PARALLEL)
    with pytest.raises(HeadwayError, match="--topologies disaggregated"):
        refuse("kubernetes", H100, only=UNIFIED)


# --- the command ----------------------------------------------------------------------


def run_plan(folder: Path, *arguments: str) -> int:
    trace = folder / "trace.csv"
    lines = ["arrival_at,prompt_tokens,output_tokens", *(f"{n / 9},90,9" for n in range(60))]
    trace.write_text("\n".join(lines) + "\n")
    words = ["plan", "--trace", str(trace), "--profiles", "llama-8b-h100", "--presets", "sbs"]
    return main([*words, "--slo", "ttft=1,tpot=0.05", "--max-gpus", "4", *arguments])


def test_a_plan_is_written_though_its_target_cannot_say_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "plan.json"
    assert run_plan(tmp_path, "--emit", "kubernetes", "--json", str(table)) != 0
    assert "--topologies disaggregated" in capsys.readouterr().err
    found = json.loads(table.read_text())
    assert (found["best"], found["gpus"]) == ("1U llama-8b-h100 sbs", 1)
    assert [len(each["by_seed"]) for each in found["finalists"]] == [1] * len(found["finalists"])
    out = tmp_path / "kustomization.yaml"
    only = "--emit", "kubernetes", "--topologies", DISAGGREGATED, "--out", str(out)
    assert run_plan(tmp_path, *only) == 0
    assert "headway-prefill" in out.read_text()
    said = capsys.readouterr().out
    assert "every seed gives the same requests" in said
    assert "100.0 (≥ 93.9) % of the requests" in said


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--rate", "-1"], "--rate is -1"),
        (["--topologies", "mixed"], "--topologies is 'mixed'"),
        (["--emit", "kubernetes", "--topologies", UNIFIED], "no unified workers"),
        (["--json", "/no/such/folder/plan.json"], "cannot write"),
    ],
)
def test_what_cannot_be_had_is_refused_before_the_search(
    arguments: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_plan(tmp_path, *arguments) != 0
    said = capsys.readouterr()
    assert reason in said.err
    assert "searched" not in said.out
