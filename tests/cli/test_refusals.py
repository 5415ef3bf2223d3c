"""Commands refuse what cannot be, in one sentence, before they start anything."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from cli import main
from services.local.run_file import RUN_FILE
from services.worker.engines import known_engines


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


COMMANDS = (("simulate", "chat-and-reasoning"), ("reproduce", "sbs"), ("demo",), ("up",))


@pytest.mark.parametrize("wrong", [("--policy", "batching=nope"), ("--set", "batching.nope=1")])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_wrong_policy_is_refused_in_one_sentence(
    command: tuple[str, ...],
    wrong: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = dict(os.environ)
    assert main([*command, *wrong]) == 2
    said = capsys.readouterr()
    assert "nope" in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert not said.out
    assert not list(tmp_path.iterdir())
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("up --prefil 2", "unknown argument --prefil: did you mean --prefill"),
        ("profile run --out mine.toml --engine openai", "shows its passes"),
        ("profile run --out mine.toml --engine x", "one of torch"),
        ("chaos --faults kill,earthquake", "earthquake"),
        ("profile run --out x.toml --tpot-slo 0", "--tpot-slo"),
        ("demo --presets sbs", "--presets is 'sbs'; it must be two different ones"),
        ("demo --presets sbs,sbs", "--presets is 'sbs,sbs'"),
        ("demo --presets sbs,fast", "preset is 'fast'"),
        ("demo --presets sbs,headway,sbs", "--presets is 'sbs,headway,sbs'"),
        ("demo --for 0s", "--for is 0"),
        ("demo --for 2h", "--for is 7200"),
        ("demo --num-requests 3", "--num-requests is 3"),
        ("demo --warm-up 1", "--warm-up is 1"),
        ("demo --max-running 0", "--max-running is 0"),
        ("demo --decode 0", "--decode is 0"),
        ("demo --seeds 0", "--seeds is 0"),
        ("demo --seeds 1,1", "--seeds is '1,1'"),
        ("plan --trace chat-and-reasoning --presets none", "preset is 'none'"),
        ("plan --trace chat-and-reasoning --max-gpus 0", "--max-gpus"),
        ("plan --trace chat-and-reasoning --slo itl=1", "--slo"),
        ("simulate sbs-prefill --stream --out x", "without --out and --plots"),
        ("simulate sbs-prefill --stream --plots x", "without --out and --plots"),
        ("simulate sbs-prefill --parquet", "with --out"),
        ("simulate sbs-prefill --rates 5,-1", "--rates is -1.0; it must be finite numbers over 0"),
        ("simulate sbs-prefill --rates nan", "--rates is nan"),
        ("simulate sbs-prefill --rates inf", "--rates is inf"),
        ("simulate sbs-prefill --rates 0", "rate is 0.0; it must be a finite number over 0"),
        ("simulate sbs-prefill --preset sbs,fast", "vllm-like"),
        ("bench abuse --only 'nothing like it'", "ambiguous grammar"),
        ("bench agents --turns 0", "--turns is 0"),
        ("bench agents --sessions 0", "--sessions is 0"),
        ("bench agents --rate 0", "--rate is 0.0"),
        ("bench agents --fork 2", "--fork is 2.0"),
        ("bench agents --output-tokens 0", "--output-tokens is 0"),
        ("bench agents --file no/such/file", "cannot read no/such/file"),
        ("bench agents --kill-leader 3", "--kill-leader is 3.0"),
        ("bench agents --compare quickest", "preset is 'quickest'"),
        ("bench agents --compare sbs,sbs", "--compare is 'sbs,sbs'"),
        ("bench agents --json /no/such/folder/x.json", "cannot write"),
        ("bench burst --profile llama-8b-a100 --policies x", "--policies is 'x'"),
        ("bench burst --profile llama-8b-a100 --max-decode 0", "--max-decode is 0"),
        ("bench burst --profile nowhere.toml", "headway profile run"),
        ("bench cpu --presets headway", "--presets is 'headway'"),
        ("bench cpu --rate 0", "--rate is 0.0"),
        ("bench cpu --decode 99", "--decode is 99"),
        (
            "bench flood --live --profile llama-8b-a100",
            "--profile is 'llama-8b-a100'; it must be left out with --live",
        ),
        ("bench flood --load 0.01 --seconds 1 --seeds 1,", "none of the others asked"),
        ("bench gateway --rounds 0", "--rounds is 0"),
        ("bench gateway --seconds 0", "--seconds is 0"),
        ("bench gateway --streams 0", "--streams is 0"),
        ("bench gateway --tokens 0", "--tokens is 0"),
        ("bench serve --rate 1 --slo speed=1", "slo is 'speed=1'"),
        ("bench serve --rate 1 --timeout 0", "--timeout is 0.0"),
        ("bench serve --rate 1 --max-tokens 0", "--max-tokens is 0"),
        ("bench serve --rate 1 --temperature 3", "--temperature is 3.0"),
        ("bench serve --rate 1 --warmup -1", "--warmup is -1"),
        ("bench serve --rate 1 --burstiness 0", "--burstiness is 0.0"),
        (
            "bench sim --seconds 0.001 --rate 10",
            "nobody asks within 0.001 s at 10 requests/s: give",
        ),
        ("bench sim --seconds 0", "--seconds is 0.0; it must be from 0.001"),
        ("bench sim --rate nan", "--rate is nan; it must be from 0.001"),
        ("bench sim --decode 0", "--decode is 0; it must be from 1"),
        ("bench sim --output 0", "--output is 0.0; it must be from 1"),
        ("bench vllm --contenders fcfs,sglang", "different ones of fcfs, priority"),
        ("bench vllm --regime light,storm", "different ones of burst, overload, light"),
        ("bench vllm --seeds x", "--seeds"),
        ("bench vllm --virtual --long 1.5", "--long"),
        ("bench vllm --virtual --loads much", "--loads"),
        ("bench vllm --virtual --unread 2", "--unread"),
        ("bench vllm --virtual --set batching.nothing=1", "nothing"),
        ("bench vllm --virtual --profile 'no such card'", "no such card"),
        ("bench vllm --virtual --seeds x", "--seeds"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence_at_once(
    command: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(command)) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert len(shown.err.strip().splitlines()) == 1
    assert not shown.out
    assert not list(tmp_path.iterdir())


def test_an_engine_that_plans_its_own_passes_has_one_unit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = '{"url": "http://127.0.0.1:9"}'
    roles = ("--prefill", "0", "--decode", "0", "--unified", "1")
    assert main(["up", "--engine", "openai", "--engine-args", url, *roles, "--dp", "2"]) == 2
    assert "--dp is 2; it must be 1 with engine openai" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "given",
    [
        ("--worker.deterministic",),
        ("--worker.kernels", "torch"),
        ("--worker.max-running", "4"),
        ("--worker.linger", "0.5"),
        ("--dtype", "float32"),
    ],
)
def test_options_that_the_engine_does_not_read_are_refused_by_name(
    given: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = '{"url": "http://127.0.0.1:9"}'
    assert main(["up", "--engine", "openai", "--engine-args", url, *given]) == 2
    named = f"--{given[0].removeprefix('--').removeprefix('worker.')} is"
    said = capsys.readouterr().err
    assert named in said
    assert "left out with engine openai, which does not read it" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif("vllm" in known_engines(), reason="vLLM is installed here")
@pytest.mark.parametrize("engine", ["vllm", "vllm-native"])
@pytest.mark.parametrize("command", ["demo", "up"])
def test_an_engine_that_is_not_installed_is_refused_in_one_sentence(
    command: str, engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--engine", engine]) in (1, 2)
    said = capsys.readouterr().err.strip()
    assert f"engine '{engine}' is not installed in this environment" in said
    assert len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir())


DEEP = "[" * 100_000
LONG = "x" * 5000


@pytest.mark.parametrize(
    ("command", "content", "said"),
    [
        (f"profile show {LONG}", "", "File name too long"),
        (f"simulate {LONG}", "", "File name too long"),
        (
            "plan --trace file.jsonl --profiles llama-8b-a100",
            f'{{"arrival_at": 1{"0" * 400}, "prompt_tokens": 5, "output_tokens": 5}}',
            "file.jsonl, line 1: arrival_at is 1000",
        ),
        ("explain r --log-dir .", DEEP, "cannot be read"),
        ("trace --log-dir . --out out.json", DEEP, "cannot be read"),
        ("vopr --scenario file", f"a={LONG}", "as `headway vopr` writes it"),
    ],
)
def test_a_hostile_file_is_refused_in_one_short_sentence(
    command: str, content: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("file", "file.jsonl", RUN_FILE):
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o600)
    assert main(command.split()) in (1, 2)
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) == 1
    assert len(told) < 600
