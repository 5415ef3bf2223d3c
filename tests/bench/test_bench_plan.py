"""What is sent when is settled by the options and the seed alone."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.serve.plan import Options, Plan, make_plan
from headway.errors import HeadwayError
from models.tasks import held_out

POISSON = Options(model="m", rate=4.0, num_requests=40)


def bodies(plan: Plan) -> list[dict[str, Any]]:
    return [json.loads(planned.body) for planned in plan.requests]


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def test_the_same_options_give_the_same_bytes_and_another_seed_others() -> None:
    one, again, other = (make_plan(replace(POISSON, seed=seed)) for seed in (1, 1, 2))
    assert one == again
    assert one.requests != other.requests


def test_without_a_count_or_a_duration_there_are_a_hundred() -> None:
    assert len(make_plan(Options(model="m", rate=1.0)).requests) == 100


def test_the_small_models_prompts_are_held_out_and_know_their_answers() -> None:
    plan = make_plan(POISSON)
    assert plan.path == "/v1/chat/completions"
    assert {planned.task for planned in plan.requests} == {"add", "sort", "count", "chain"}
    for planned, body in zip(plan.requests, bodies(plan), strict=True):
        assert held_out(body["messages"][0]["content"])
        assert planned.answer
        assert "max_tokens" not in body
        assert body["stream_options"] == {"include_usage": True}


def test_mini_prompts_follow_a_traces_output_lengths(tmp_path: Path) -> None:
    rows = ("arrival_at,output_tokens", *(f"{at},{20 if at % 2 else 1500}" for at in range(20)))
    plan = make_plan(Options(model="m", trace=write(tmp_path / "t.csv", *rows), prompts="mini"))
    lengths = [len(body["messages"][0]["content"]) for body in bodies(plan)]
    assert max(lengths[1::2]) < min(lengths[0::2])
    assert any("nearest in length" in note for note in plan.notes)


def test_random_tokens_have_the_traces_lengths_within_the_models(tmp_path: Path) -> None:
    rows = ("arrival_at,prompt_tokens,output_tokens", "0,30,7", "1,5000,50", "2,10,900")
    options = Options(model="m", trace=write(tmp_path / "t.csv", *rows), prompts="random-tokens")
    plan = make_plan(replace(options, model_limit=100))
    found = [(len(body["prompt"]), body["max_tokens"]) for body in bodies(plan)]
    assert found == [(30, 7), (50, 50), (1, 99)]
    assert plan.path == "/v1/completions"
    assert all(body["ignore_eos"] for body in bodies(plan))
    assert not any(each.reasons for each in plan.requests)  # all of the output is an answer
    assert any("100 tokens" in note for note in plan.notes)


def test_a_traces_own_prompts_are_used_where_it_has_them(tmp_path: Path) -> None:
    row = {"arrival_at": 3, "prompt": "Add 1, 2.", "output_tokens": 9}
    plan = make_plan(Options(model="m", trace=write(tmp_path / "t.jsonl", json.dumps(row))))
    assert bodies(plan)[0]["messages"] == [{"role": "user", "content": "Add 1, 2."}]
    assert bodies(plan)[0]["max_tokens"] == 9
    assert plan.requests[0].reasons
    assert plan.requests[0].arrival_at == 0.0


def test_a_file_gives_a_prompt_a_line_as_text_or_messages(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    text, chat = write(tmp_path / "p.txt", "one"), tmp_path / "p.jsonl"
    write(chat, json.dumps({"messages": messages}))
    plain = replace(POISSON, prompts=str(text), endpoint="completions", max_tokens=5)
    assert bodies(make_plan(plain))[0]["prompt"] == "one"
    assert bodies(make_plan(plain))[0]["max_tokens"] == 5
    assert bodies(make_plan(replace(POISSON, prompts=str(chat))))[0]["messages"] == messages


def test_a_rate_stretches_a_gzipped_trace_to_a_new_mean(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"arrival_at\n0\n10\n20\n"))
    plan = make_plan(Options(model="m", trace=path, rate=4.0))
    assert [planned.arrival_at for planned in plan.requests] == pytest.approx([0, 0.25, 0.5])
    fast = make_plan(Options(model="m", trace=path, speed=5.0, duration=3.0))
    assert [planned.arrival_at for planned in fast.requests] == pytest.approx([0, 2])


def test_lengths_of_a_trace_may_come_with_other_arrivals(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "arrival_at,output_tokens", "0,11", "9,12")
    options = replace(POISSON, trace=path, arrivals="constant", num_requests=2)
    plan = make_plan(replace(options, prompts="random-tokens"))
    assert [planned.arrival_at for planned in plan.requests] == [0.25, 0.5]
    assert [body["max_tokens"] for body in bodies(plan)] == [11, 12]


def test_a_coarse_clock_is_spread_and_said(tmp_path: Path) -> None:
    row = {"input_length": 1, "output_length": 1}
    lines = [json.dumps({"timestamp": at, **row}) for at in (0, 0, 0, 3000, 3000)]
    plan = make_plan(Options(model="m", trace=write(tmp_path / "t.jsonl", *lines)))
    assert len({planned.arrival_at for planned in plan.requests}) == 5
    assert any("spread over 3 s" in note for note in plan.notes)
    as_is = make_plan(Options(model="m", trace=tmp_path / "t.jsonl", spread=0.0))
    assert len({planned.arrival_at for planned in as_is.requests}) == 2


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rate": None}, "--rate"),
        ({"rate": 0.0}, "--rate is 0.0"),
        ({"rate": -1.0}, "--rate"),
        ({"rate": float("nan")}, "--rate"),
        ({"num_requests": 0}, "--num-requests is 0"),
        ({"num_requests": 10**9}, "--num-requests"),
        ({"duration": 0.0}, "--duration"),
        ({"speed": 2.0}, "--rate"),
        ({"arrivals": "trace"}, "--trace"),
        ({"prompts": "trace"}, "--trace"),
        ({"prompts": "random-tokens", "endpoint": "chat"}, "completions"),
        ({"prompts": "mini", "endpoint": "completions"}, "chat"),
        ({"prompts": "/no/such/file"}, "/no/such/file"),
        ({"trace": Path("/no/such/file.gz")}, "/no/such/file.gz"),
        ({"num_requests": None, "duration": 1e-9}, "no request arrives"),
    ],
)
def test_what_contradicts_itself_is_refused_with_the_way_out(
    changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(HeadwayError) as refused:
        make_plan(replace(POISSON, **changed))
    assert said in refused.value.message


@pytest.mark.parametrize("line", ["{", "{}", '{"prompt": 1}', "[]"])
def test_a_prompt_line_without_a_prompt_is_refused_with_its_number(
    tmp_path: Path, line: str
) -> None:
    path = write(tmp_path / "p.jsonl", '{"prompt": "fine"}', line)
    with pytest.raises(HeadwayError, match="line 2"):
        make_plan(replace(POISSON, prompts=str(path)))
