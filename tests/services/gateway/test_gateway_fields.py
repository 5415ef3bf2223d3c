"""Fields and routes that clients of vLLM and SGLang use, through a real gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.fakes.gateway_harness import Cluster, cluster
from tests.fakes.tiny_model import ASSISTANT, END, USER

CHAT = "/v1/chat/completions"


async def post(running: Cluster, path: str, **body: Any) -> Any:
    async with running.http() as client:
        answer = await client.post(path, json=body)
        return answer.json()


async def chat(running: Cluster, text: str, **more: Any) -> Any:
    """The emulated worker answers with the prompt's text."""
    said = [{"role": "user", "content": text}]
    return await post(running, CHAT, model="tiny", messages=said, **more)


async def test_a_stop_string_is_shown_if_the_client_wants_it(running: Cluster) -> None:
    for keeps, text in ((False, "abc"), (True, "abcde")):
        body = {"prompt": "abcdef", "stop": ["de"], "include_stop_str_in_output": keeps}
        answer = await post(running, "/v1/completions", model="tiny", **body)
        assert answer["choices"][0]["text"] == text


async def test_special_tokens_are_shown_but_for_the_last_one(running: Cluster) -> None:
    ids = [97, END, 98, END]
    for skips, text in ((True, "ab"), (False, "a<|end|>b")):
        body = {"prompt": ids, "skip_special_tokens": skips}
        answer = await post(running, "/v1/completions", model="tiny", **body)
        assert answer["choices"][0]["text"] == text


async def test_a_prompt_is_cut_to_its_last_tokens(running: Cluster) -> None:
    for prompt in ("abcdef", [97, 98, 99, 100, 101, 102]):
        for most, text in ((2, "ef"), (6, "abcdef"), (9, "abcdef"), (-1, "abcdef")):
            body = {"prompt": prompt, "truncate_prompt_tokens": most}
            answer = await post(running, "/v1/completions", model="tiny", **body)
            assert answer["choices"][0]["text"] == text
            assert answer["usage"]["prompt_tokens"] == len(text)
    answer = await chat(running, "hello", truncate_prompt_tokens=3)
    assert answer["usage"]["prompt_tokens"] == 3
    assert running.emulated.submitted[-1].prompt_token_ids == (ord("o"), END, ASSISTANT)


async def test_what_is_too_long_is_cut_to_what_fits(tmp_path: Path, store_url: str) -> None:
    async with cluster(tmp_path, store_url, max_model_len=20) as running:
        body = {"model": "tiny", "prompt": "ab" * 400, "truncate_prompt_tokens": -1}
        for more, kept in (
            ({}, 19),
            ({"max_tokens": 5}, 15),
            ({"max_tokens": 0, "echo": True}, 19),
        ):
            answer = await post(running, "/v1/completions", **body, **more)
            assert answer["usage"]["prompt_tokens"] == kept
        for wrong in (0, 21, -2):
            refused = await post(
                running, "/v1/completions", **{**body, "truncate_prompt_tokens": wrong}
            )
            assert refused["error"]["param"] == "truncate_prompt_tokens"
        refused = await post(running, "/v1/completions", **body, max_tokens=20)
        assert refused["error"]["param"] == "max_tokens"


async def test_log_probabilities_do_not_lengthen_an_answer_nor_cut_its_prompt(
    tmp_path: Path, store_url: str
) -> None:
    generation: dict[str, object] = {"max_new_tokens": 150}
    async with cluster(tmp_path, store_url, max_model_len=400, generation=generation) as running:
        await chat(running, "ab" * 300, logprobs=True, truncate_prompt_tokens=-1)
        for more in ({}, {"n": 128, "top_logprobs": 20}):
            await chat(running, "hi", logprobs=True, **more)
    cut, usual, *many = running.emulated.submitted
    assert (len(cut.prompt_token_ids), usual.sampling.max_tokens) == (399, 150)
    assert {each.sampling.max_tokens for each in many} == {97}, "for all of them together"


async def test_a_final_message_may_go_on(running: Cluster) -> None:
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well,"}]
    more = {"continue_final_message": True, "skip_special_tokens": False}
    answer = await post(running, CHAT, model="tiny", messages=said, **more)
    assert answer["choices"][0]["message"]["content"] == "<|user|>hi<|end|><|assistant|>Well,"


async def test_a_clients_template_needs_the_operators_trust(
    running: Cluster, tmp_path: Path, store_url: str
) -> None:
    template = {"chat_template": "<{{ messages[0].content }}>"}
    refused = await chat(running, "hi", **template)
    assert refused["error"]["param"] == "chat_template"
    folder = tmp_path / "trusting"
    folder.mkdir()
    async with cluster(folder, store_url, trust_request_chat_template=True) as trusting:
        answer = await chat(trusting, "hi", **template)
        assert answer["choices"][0]["message"]["content"] == "<hi>"
        broken = await chat(trusting, "hi", chat_template="{% if %}")
        assert broken["error"]["param"] == "chat_template"


async def test_bounds_of_draws_reach_the_worker(running: Cluster) -> None:
    await chat(running, "hi", logit_bias={"97": -5}, bad_words=["ab"])
    constraints = running.emulated.submitted[-1].sampling.constraints
    assert constraints is not None
    assert (constraints.biased_token_ids, constraints.biases) == ((97,), (-5.0,))
    assert [word.token_ids for word in constraints.bad_words] == [(97, 98), (32, 97, 98)]
    wrong = await chat(running, "hi", logit_bias={"99999": 1})
    assert wrong["error"]["param"] == "logit_bias"


async def test_the_bounds_of_all_outputs_of_a_call_are_few(running: Cluster) -> None:
    words = [letter * 60 for letter in "abcdefghijklmnop"]  # 60 tokens each, 61 after a space
    body = {"prompt": "hi", "max_tokens": 1, "bad_words": words}
    answer = await post(running, "/v1/completions", model="tiny", **body, n=64)
    assert len(answer["choices"]) == 64
    refused = await post(running, "/v1/completions", model="tiny", **body, n=128)
    assert refused["error"]["param"] == "n"
    assert "name 1936 tokens for each of 128 outputs" in refused["error"]["message"]


async def test_every_event_may_bear_the_usage_so_far(running: Cluster) -> None:
    stream = await running.openai().chat.completions.create(  # type: ignore[call-overload]  # vLLM's option
        model="tiny",
        messages=[{"role": "user", "content": "hi there"}],
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    counts = [chunk.usage.completion_tokens async for chunk in stream if chunk.usage is not None]
    assert counts == sorted(counts)
    assert len(set(counts)) > 3


async def test_texts_and_chats_become_tokens_and_back(running: Cluster) -> None:
    found = await post(running, "/tokenize", prompt="ab", return_token_strs=True)
    assert (found["tokens"], found["token_strs"], found["count"]) == ([97, 98], ["a", "b"], 2)
    said = [{"role": "user", "content": "a"}]
    found = await post(running, "/tokenize", messages=said)
    assert found["tokens"] == [USER, 97, END, ASSISTANT]
    back = await post(running, "/detokenize", model="tiny", tokens=found["tokens"])
    assert back["prompt"] == "<|user|>a<|end|><|assistant|>"
    assert (await post(running, "/detokenize", tokens=[999_999]))["error"]["param"] == "tokens"
    assert (await post(running, "/tokenize", model="no", prompt="a"))["error"]["param"] == "model"


async def test_release_readiness_and_load_are_told(running: Cluster) -> None:
    async with running.http() as client, asyncio.timeout(60):
        while not all([(await client.get(path)).is_success for path in ("/health", "/ping")]):
            await asyncio.sleep(0.05)
        assert (await client.get("/version")).json()["version"]
        assert (await client.get("/load")).json() == {"server_load": 0}


async def test_metrics_are_there_under_vllms_names(running: Cluster) -> None:
    await chat(running, "hi")
    metrics = await running.metrics()
    model = '{model_name="tiny"}'
    for name in ("num_requests_running", "num_requests_waiting"):
        assert metrics[f"vllm:{name}{model}"] == 0.0
    for theirs, ours in (
        ("time_to_first_token", "ttft"),
        ("e2e_request_latency", "e2e"),
        ("request_time_per_output_token", "tpot"),
    ):
        count = metrics[f"vllm:{theirs}_seconds_count{model}"]
        assert count == metrics[f"headway_gateway_{ours}_seconds_count"] == 1.0
    assert metrics[f"vllm:generation_tokens_total{model}"] > 0
