"""The official OpenAI client, unchanged, against a real gateway."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam

from headway.errors import Code
from headway.messages import Rejected
from headway.request import StreamKey
from services.gateway.auth import key_line
from tests.fakes.gateway_harness import Cluster, cluster

THOUGHT = "<think>\n7 + 8 is 15\n</think>\n\nIt is 15 🎉."


def said(text: str) -> list[ChatCompletionMessageParam]:
    """The emulated worker answers with what it was told."""
    return [{"role": "user", "content": text}]


async def test_a_chat_is_answered_with_reasoning_apart(running: Cluster) -> None:
    answer = await running.openai().chat.completions.create(
        model="tiny", messages=said(THOUGHT), temperature=0
    )
    choice = answer.choices[0]
    assert choice.message.content == "It is 15 🎉."
    names = ("reasoning", "reasoning_content")
    assert choice.message.model_extra == dict.fromkeys(names, "7 + 8 is 15")
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.system_fingerprint
    assert answer.usage is not None
    assert answer.usage.completion_tokens == answer.usage.prompt_tokens
    assert answer.usage.total_tokens == 2 * answer.usage.prompt_tokens
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == len("\n7 + 8 is 15\n") + 2
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


async def chunks_of(running: Cluster, **options: object) -> list[ChatCompletionChunk]:
    stream = await running.openai().chat.completions.create(  # type: ignore[call-overload]  # options vary
        model="tiny", messages=said(THOUGHT), stream=True, **options
    )
    return [chunk async for chunk in stream]


async def test_a_streamed_chat_says_the_same_in_pieces(running: Cluster) -> None:
    chunks = await chunks_of(running, stream_options={"include_usage": True})
    assert chunks[0].choices[0].delta.role == "assistant"
    deltas = [chunk.choices[0].delta for chunk in chunks[:-1]]
    assert "".join(delta.content or "" for delta in deltas) == "It is 15 🎉."
    reasoning = [(delta.model_extra or {}).get("reasoning_content") or "" for delta in deltas]
    assert "".join(reasoning) == "7 + 8 is 15"
    reasons = [chunk.choices[0].finish_reason for chunk in chunks[:-1]]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1


async def test_the_last_usage_says_what_the_time_consisted_of_where_that_is_asked(
    running: Cluster,
) -> None:
    chunks = await chunks_of(running, stream_options={"include_timings": True}, n=2)
    asked = chunks[-1].usage
    assert asked is not None
    told = (asked.model_extra or {})["timings"]
    assert len({each["request_id"] for each in told}) == 2
    for each in told:
        assert sum(each["parts"].values()) == pytest.approx(each["total"], abs=1e-5)
        assert 0 < each["ttft"] <= each["total"]
    plain = (await chunks_of(running, stream_options={"include_usage": True}))[-1].usage
    assert plain is not None
    assert "timings" not in (plain.model_extra or {})


async def test_cached_tokens_are_counted_in_a_whole_and_in_a_streamed_answer(
    running: Cluster,
) -> None:
    chat = running.openai().chat.completions
    first = await chat.create(model="tiny", messages=said(THOUGHT), n=2)
    second = await chat.create(model="tiny", messages=said(THOUGHT), n=2)
    chunks = await chunks_of(running, stream_options={"include_usage": True})
    assert first.usage is not None
    prompt_tokens = first.usage.prompt_tokens
    cached = []
    for usage in (first.usage, second.usage, chunks[-1].usage):
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        cached.append(usage.prompt_tokens_details.cached_tokens)
    assert cached == [0, prompt_tokens - 1, prompt_tokens - 1]


async def test_without_being_asked_a_stream_bears_no_usage(running: Cluster) -> None:
    chunks = await chunks_of(running)
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


async def test_max_tokens_ends_an_output_with_length(running: Cluster) -> None:
    answer = await running.openai().chat.completions.create(
        model="tiny", messages=said("abcdef"), max_completion_tokens=4
    )
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("abc", "length")


async def test_several_choices_have_seeds_of_their_own(running: Cluster) -> None:
    answer = await running.openai().chat.completions.create(
        model="tiny", messages=said("ab"), n=3, seed=5
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [request.sampling.seed for request in running.emulated.submitted] == [5, 6, 7]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3 * answer.usage.prompt_tokens


async def test_a_stop_string_cuts_the_answer_and_stops_the_worker(running: Cluster) -> None:
    answer = await running.openai().chat.completions.create(
        model="tiny",
        messages=said("one two three"),
        stop=["x", " tw"],
        extra_body={"ignore_eos": True},
    )
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("one", "stop")


async def test_logprobs_come_with_every_token(running: Cluster) -> None:
    answer = await running.openai().chat.completions.create(
        model="tiny", messages=said("a"), logprobs=True, top_logprobs=2, max_tokens=2
    )
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content
    assert content is not None
    assert [(entry.token, entry.logprob, entry.bytes) for entry in content] == [
        ("<|user|>", -0.5, list(b"<|user|>")),
        ("a", -0.5, [97]),
    ]
    assert [top.token for top in content[1].top_logprobs] == ["a", "b"]


async def test_streamed_logprobs_leave_no_token_out(running: Cluster) -> None:
    chunks = await chunks_of(running, logprobs=True)
    entries = [
        entry.token
        for chunk in chunks
        if chunk.choices[0].logprobs is not None
        for entry in chunk.choices[0].logprobs.content or []
    ]
    assert len(entries) == len(running.emulated.submitted[0].prompt_token_ids)


async def test_a_completion_continues_text(running: Cluster) -> None:
    answer = await running.openai().completions.create(
        model="tiny", prompt="ab", max_tokens=5, logprobs=1, extra_body={"ignore_eos": True}
    )
    choice = answer.choices[0]
    assert (choice.text, choice.finish_reason) == ("ababa", "length")
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["a", "b", "a", "b", "a"]
    assert choice.logprobs.text_offset == [0, 1, 2, 3, 4]
    assert choice.logprobs.token_logprobs == [-0.5] * 5
    assert answer.object == "text_completion"


async def test_a_streamed_completion_says_the_same(running: Cluster) -> None:
    stream = await running.openai().completions.create(
        model="tiny", prompt="<think>é</think>", max_tokens=50, stream=True
    )
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "<think>é</think>"


async def test_several_prompts_have_a_choice_each(running: Cluster) -> None:
    answer = await running.openai().completions.create(model="tiny", prompt=["a", "b"], n=2)
    assert [choice.text for choice in answer.choices] == ["a", "a", "b", "b"]


async def test_a_completion_takes_token_ids_and_returns_them(running: Cluster) -> None:
    answer = await running.openai().completions.create(
        model="tiny", prompt=[104, 105], extra_body={"return_token_ids": True}
    )
    assert answer.choices[0].text == "hi"
    assert (answer.choices[0].model_extra or {})["token_ids"] == [104, 105]


async def test_a_completion_has_16_tokens_unless_told_otherwise(running: Cluster) -> None:
    answer = await running.openai().completions.create(model="tiny", prompt="x" * 100)
    assert answer.choices[0].text == "x" * 16


async def test_thinking_can_be_turned_off(running: Cluster) -> None:
    await running.openai().chat.completions.create(
        model="tiny",
        messages=said("a"),
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )
    assert running.emulated.submitted[0].prompt_token_ids[-2:] == (259, 260)


async def test_a_long_prompt_is_tokenised_beside_the_loop(running: Cluster) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await running.openai().completions.create(model="tiny", prompt="a" * 100_000)
    assert caught.value.param == "prompt"
    assert "100000" in caught.value.message
    assert "2048" in caught.value.message


async def test_a_chat_over_the_context_is_refused_as_messages(running: Cluster) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await running.openai().chat.completions.create(model="tiny", messages=said("a" * 3000))
    assert caught.value.param == "messages"


async def test_models_are_listed_and_found(running: Cluster) -> None:
    client = running.openai()
    assert [model.id async for model in client.models.list()] == ["tiny"]
    assert (await client.models.retrieve("tiny")).owned_by == "headway"
    with pytest.raises(openai.NotFoundError) as caught:
        await client.models.retrieve("gpt-5")
    assert caught.value.code == "model_not_found"


async def test_an_unknown_model_is_not_found_by_name(running: Cluster) -> None:
    with pytest.raises(openai.NotFoundError, match="tiny") as caught:
        await running.openai().chat.completions.create(model="gpt-5", messages=said("a"))
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_rejection_is_429_with_the_time_to_come_back(
    running: Cluster, stream: bool
) -> None:
    running.emulated.rejection = Rejected(
        StreamKey("", 0), Code.RESOURCE_EXHAUSTED, "the window is full", 7.0
    )
    with pytest.raises(openai.RateLimitError, match="window is full") as caught:
        await running.openai().chat.completions.create(
            model="tiny", messages=said("a"), stream=stream
        )
    assert caught.value.response.headers["retry-after"] == "7"


async def test_an_unavailable_cluster_is_503(running: Cluster) -> None:
    running.emulated.rejection = Rejected(StreamKey("", 0), Code.UNAVAILABLE, "no workers", 1.0)
    with pytest.raises(openai.InternalServerError, match="no workers") as caught:
        await running.openai().chat.completions.create(model="tiny", messages=said("a"))
    assert caught.value.status_code == 503


async def test_a_bad_parameter_is_named(running: Cluster) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await running.openai().chat.completions.create(
            model="tiny", messages=said("a"), temperature=5
        )
    assert caught.value.param == "temperature"
    assert caught.value.type == "invalid_request_error"


async def test_the_templates_own_refusal_reaches_the_client(running: Cluster) -> None:
    with pytest.raises(openai.BadRequestError, match="no bad words"):
        await running.openai().chat.completions.create(model="tiny", messages=said("bad"))


async def test_a_key_is_asked_for_where_keys_are_configured(tmp_path: Path, store_url: str) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# who may call\n{key_line('ann', 'secret')}\n")
    file.chmod(0o600)
    async with cluster(tmp_path, store_url, api_key_file=file) as running:
        with pytest.raises(openai.AuthenticationError) as caught:
            await running.openai("wrong").chat.completions.create(model="tiny", messages=said("a"))
        assert caught.value.code == "invalid_api_key"
        answer = await running.openai("secret").chat.completions.create(
            model="tiny", messages=said("a")
        )
        assert answer.choices[0].message.content == "a"
        async with running.http() as client:
            assert (await client.get("/health")).status_code == 200
            assert (await client.get("/metrics")).status_code == 401
            assert (await client.get("/v1/models")).status_code == 401


async def test_generation_defaults_come_from_the_model(tmp_path: Path, store_url: str) -> None:
    async with cluster(
        tmp_path, store_url, generation={"temperature": 0.6, "top_p": 0.95}
    ) as running:
        await running.openai().chat.completions.create(model="tiny", messages=said("a"), top_p=0.5)
        sampling = running.emulated.submitted[0].sampling
        assert (sampling.temperature, sampling.top_p) == (0.6, 0.5)
