"""``headway up FILE.toml``: several models, each with its workers; a wrong file is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli import up
from services.gateway.config import GatewayConfig
from services.local.options import process_specs
from services.local.store import free_port
from services.runtime.config import load_config
from services.runtime.rooms import model_folder
from services.worker.config import WorkerConfig
from tests.fakes.said_by_up import said_of

MINI = model_folder("headway-mini")
TWO = """
[[model]]
name = "a"
path = "headway-mini"

[[model]]
name = "org/b"
path = "headway-mini"
unified = 2
predictor = "P"
max_model_len = 128
tool_call_parser = "hermes"
worker = { dp = 2, prefix-caching = false, max_running = 3 }
lora = { sql = "there" }
"""


def write(folder: Path, text: str) -> str:
    file = folder / "models.toml"
    file.write_text(text)
    return str(file)


def test_each_model_has_its_workers_and_the_gateway_all_models(tmp_path: Path) -> None:
    file = write(tmp_path, TWO)
    options = up.parse([file, "--worker.host-kv-gib", "2", "--dp", "1"])
    specs = {spec.service_id: spec for spec in process_specs(options, num_cores=8)}
    assert [*specs][-4:] == ["prefill-1", "decode-1", "unified-1", "unified-2"]
    gateway = load_config(GatewayConfig, specs["gateway"].flags)
    found = [
        (one.model_name, one.model, one.max_model_len, one.tool_call_parser)
        for one in gateway.by_model()
    ]
    assert found == [("a", MINI, 0, "auto"), ("org/b", MINI, 128, "hermes")]
    configs = {
        name: load_config(WorkerConfig, spec.flags)
        for name, spec in specs.items()
        if spec.service == "worker"
    }
    assert {(c.host_kv_gib, c.num_threads) for c in configs.values()} == {(2.0, 2)}
    b = configs["unified-2"]
    assert (b.model_name, b.dp, b.prefix_caching, b.max_model_len) == ("org/b", 2, False, 128)
    assert b.max_running == 3
    assert [one.lora for one in gateway.by_model()] == [{}, {"sql": "there"}]
    assert [c.lora for c in configs.values()] == [{}, {}, {"sql": "there"}, {"sql": "there"}]
    a = configs["decode-1"]
    assert (a.model_name, a.dp, a.prefix_caching, a.max_model_len) == ("a", 1, True, 0)
    predictors = specs["predictor"].flags
    named = json.loads(predictors[predictors.index("--predictors") + 1])
    assert named == {"a": str(Path(MINI) / "predictor"), "org/b": "P"}
    autoscaler = specs["autoscaler"].flags
    numbers = {
        role: autoscaler[autoscaler.index(f"--num-{role}") + 1] for role in ("prefill", "unified")
    }
    assert numbers == {"prefill": "1", "unified": "2"}


def test_gpus_are_shared_by_the_workers_of_all_models(tmp_path: Path) -> None:
    options = up.parse([write(tmp_path, TWO), "--device", "cuda"])
    specs = [s for s in process_specs(options, num_cores=8, num_gpus=2) if s.service == "worker"]
    devices = [spec.flags[spec.flags.index("--device") + 1] for spec in specs]
    assert devices == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
    assert all(spec.flags[spec.flags.index("--gpu-share") + 1] == "0.5" for spec in specs)


def test_a_file_is_no_flag_of_a_service(tmp_path: Path) -> None:
    flags = ["--worker.host-kv-gib", "2", "--gateway.classes", "own.toml"]
    options = up.parse(flags)
    assert options.models == ()
    assert options.service_flags["gateway"] == ("--classes", "own.toml")


def model(**keys: object) -> str:
    given = {"name": "a", "path": "headway-mini", **keys}
    lines = (f"{key} = {json.dumps(value)}" for key, value in given.items() if value is not None)
    return "\n".join(("[[model]]", *lines, ""))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the number of [[model]] tables in models.toml is 0; it must be 1 to 16"),
        ("[model]\nname = 'a'", "the number of [[model]] tables"),
        ("[[model]", "models.toml is not TOML"),
        ("x = " + "[" * 5000 + "]" * 5000, "models.toml has tables or lists in too many others"),
        ("[[models]]", "a key of models.toml is 'models'; it must be model"),
        (model(name=None), "name of model 1 of models.toml is ''"),
        (model(path=None), "path of model 1 of models.toml is ''"),
        (model(name=7), "name of model 1 of models.toml is 7"),
        (model() + model(), "name of model 2 of models.toml is 'a'; it must be one that no other"),
        (model(decod=1), "a key of model 1 of models.toml is 'decod'; it must be one of name,"),
        (model(decode=65), "decode of model 1 of models.toml is 65; it must be a whole number"),
        (model(decode=True), "decode of model 1 of models.toml is True"),
        (model(decode=0), "'prefill 1, decode 0, unified 0'; it must be at least one of both"),
        (model(path="no/such"), "model 'a': "),
        (model(predictor="nowhere"), "model 'a': --predictor is 'nowhere'"),
        (model(max_model_len=10**6), "model 'a': max_model_len is 1000000; the model's limit is"),
        (model(tool_call_parser="x"), "tool-call-parser is 'x'"),
        (model() + "worker = 3", "worker of model 1 of models.toml is 3"),
        (model() + "worker = {dpp = 2}", "did you mean --worker.dp"),
        (model() + "worker = {dp = -2}", "model 'a': --dp is '-2'"),
        (
            model() + "worker = {model = 'x'}",
            "a flag of worker of model 1 of models.toml is '--model",
        ),
        (model() + "worker = {role = 'decode'}", "unknown argument --worker.role"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence_and_nothing_is_made(
    text: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, text)
    assert said in said_of(capsys, "--port", str(free_port(2)), "models.toml")
    assert [path.name for path in tmp_path.iterdir()] == ["models.toml"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--prefill", "2"), "--prefill is for one model"),
        (("--model-name", "x"), "--model-name is for one model"),
        (("--model", "no/such"), "--model is for one model"),
        (("--autoscale",), "--autoscale is for one model"),
        (("--worker.model", "x"), "a flag of all workers is '--model'"),
        (("--gateway.max-model-len", "9"), "max_model_len is for one model"),
    ],
)
def test_options_of_one_model_are_refused_beside_a_file(
    flags: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, model())
    assert said in said_of(capsys, "--port", str(free_port(2)), "models.toml", *flags)


def test_a_file_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere.toml cannot be read" in said_of(
        capsys, "--port", str(free_port(2)), "nowhere.toml"
    )
