"""Cases of ``/v1/chat/completions`` without tools and forms."""

from __future__ import annotations

import asyncio
from typing import Any

import openai

from .asked import KEY, MESSAGES, NO_THINKING, SECONDS, SUM, TOTAL, At, cases


def client(at: At) -> Any:
    """Return the client as anybody makes it."""
    return openai.OpenAI(base_url=at.v1, api_key=KEY, timeout=SECONDS, max_retries=0)


def client_async(at: At) -> Any:
    """Return the asynchronous client."""
    return openai.AsyncOpenAI(base_url=at.v1, api_key=KEY, timeout=SECONDS, max_retries=0)


def ask(at: At, **more: Any) -> Any:
    """Ask for a sum; ``messages`` and the rest as given."""
    fields = {"model": at.model, "messages": MESSAGES, "temperature": 0, **more}
    return client(at).chat.completions.create(**fields)


def refused(status: int, param: str | None, make: Any) -> None:
    """Require a refusal with this status, which names the field."""
    try:
        make()
    except openai.APIStatusError as error:
        assert error.status_code == status, error.status_code
        assert error.param == param, error.param
        assert error.message
    else:
        raise AssertionError("it was not refused")


def chat(at: At) -> None:
    reply = ask(at)
    assert reply.choices[0].message.content == TOTAL
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def reasoning_apart(at: At) -> None:
    message = ask(at).choices[0].message
    assert message.reasoning == message.reasoning_content
    assert "<think>" not in message.content + message.reasoning


def streamed(at: At) -> None:
    chunks = [*ask(at, stream=True)]
    assert "".join(each.choices[0].delta.content or "" for each in chunks) == TOTAL
    assert chunks[0].choices[0].delta.role == "assistant"


def usage_of_a_stream(at: At) -> None:
    *_, last = ask(at, stream=True, stream_options={"include_usage": True})
    assert last.choices == []
    assert last.usage.completion_tokens > 1


def usage_in_every_event(at: At) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = [*ask(at, stream=True, stream_options=options)]
    assert sum(each.usage is not None for each in chunks) > len(chunks) - 3


def helper_of_streams(at: At) -> None:
    with client(at).chat.completions.stream(model=at.model, messages=MESSAGES) as stream:
        kinds = {event.type for event in stream}
        assert stream.get_final_completion().choices[0].message.content
    assert {"chunk", "content.delta", "content.done"} <= kinds


def asynchronous(at: At) -> None:
    async def run() -> Any:
        made = client_async(at).chat.completions
        return await made.create(model=at.model, messages=MESSAGES, temperature=0)

    assert asyncio.run(run()).choices[0].message.content == TOTAL


def asynchronous_stream(at: At) -> None:
    async def run() -> str:
        made = client_async(at).chat.completions
        fields = {"model": at.model, "messages": MESSAGES, "temperature": 0, "stream": True}
        stream = await made.create(**fields)
        return "".join([each.choices[0].delta.content or "" async for each in stream])

    assert asyncio.run(run()) == TOTAL


def eight_at_once(at: At) -> None:
    async def run() -> list[Any]:
        made = client_async(at).chat.completions
        asked = (
            made.create(model=at.model, messages=MESSAGES, temperature=0, seed=n) for n in range(8)
        )
        return await asyncio.gather(*asked)

    assert [each.choices[0].message.content for each in asyncio.run(run())] == [TOTAL] * 8


def raw_response(at: At) -> None:
    made = client(at).chat.completions.with_raw_response
    reply = made.create(model=at.model, messages=MESSAGES, extra_headers={"X-Request-Id": "raw-1"})
    assert reply.headers["x-request-id"] == "raw-1"
    assert reply.parse().choices[0].message.content


def left_stream(at: At) -> None:
    stream = ask(at, stream=True)
    next(iter(stream))
    stream.close()
    assert ask(at).choices[0].message.content == TOTAL


def several_choices(at: At) -> None:
    assert [each.index for each in ask(at, n=3).choices] == [0, 1, 2]


def seed(at: At) -> None:
    first, second = (ask(at, seed=5, temperature=1.5, max_tokens=24) for _ in range(2))
    assert first.choices[0].message == second.choices[0].message


def stop_strings(at: At) -> None:
    reply = ask(at, stop="0", extra_body=NO_THINKING)
    assert "0" not in reply.choices[0].message.content
    assert ask(at, stop=["5", "none such"]).choices[0].message.content == ""


def log_probabilities(at: At) -> None:
    content = ask(at, logprobs=True).choices[0].logprobs.content
    assert all(each.logprob <= 0 for each in content)


def top_log_probabilities(at: At) -> None:
    content = ask(at, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert all(len(each.top_logprobs) == 3 for each in content)
    assert content[0].top_logprobs[0].token == content[0].token


def streamed_log_probabilities(at: At) -> None:
    chunks = ask(at, logprobs=True, stream=True)
    logprobs = [each.choices[0].logprobs for each in chunks if each.choices[0].logprobs]
    assert sum(len(each.content) for each in logprobs) > 1


def history(at: At) -> None:
    answer = ask(at).choices[0].message.model_dump()
    again = [*MESSAGES, answer, {"role": "user", "content": "Sort 5, 3, 9."}]
    assert ask(at, messages=again).choices[0].message.content


def reasoning_in_history(at: At) -> None:
    for name in ("reasoning", "reasoning_content"):
        answer = {"role": "assistant", "content": TOTAL, name: "17 and 25 is 42."}
        assert ask(at, messages=[*MESSAGES, answer, *MESSAGES]).choices[0].message.content


def system_and_names(at: At) -> None:
    said = [{"role": "system", "content": "Be brief."}, {**MESSAGES[0], "name": "ann"}]
    assert ask(at, messages=said).choices[0].message.content
    said[0]["role"] = "developer"
    assert ask(at, messages=said).choices[0].message.content


def parts_of_content(at: At) -> None:
    parts = [{"type": "text", "text": SUM}]
    reply = ask(at, messages=[{"role": "user", "content": parts}])
    assert reply.choices[0].message.content == TOTAL


def max_tokens(at: At) -> None:
    reply = ask(at, max_tokens=4)
    assert (reply.usage.completion_tokens, reply.choices[0].finish_reason) == (4, "length")


def max_completion_tokens(at: At) -> None:
    assert ask(at, max_completion_tokens=5).usage.completion_tokens == 5


def draws(at: At) -> None:
    more = {"extra_body": {"top_k": 20, "min_p": 0.05, "repetition_penalty": 1.01}}
    penalties = {"presence_penalty": 0.1, "frequency_penalty": 0.1}
    assert ask(at, temperature=0.7, top_p=0.9, max_tokens=32, **penalties, **more).choices


def bookkeeping(at: At) -> None:
    more = {"user": "ann", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"}
    assert ask(at, **more).choices[0].message.content == TOTAL


def logit_bias(at: At) -> None:
    forced = ask(at, logit_bias={"65": 100}, max_tokens=3, extra_body=NO_THINKING)
    assert len(set(forced.choices[0].message.content)) == 1


def reasoning_effort(at: At) -> None:
    assert ask(at, reasoning_effort="none").usage.completion_tokens_details.reasoning_tokens <= 2


def thinking_budget(at: At) -> None:
    reply = ask(at, extra_body={"thinking_token_budget": 8})
    assert reply.usage.completion_tokens_details.reasoning_tokens <= 10


def prompt_logprobs(at: At) -> None:
    reply = ask(at, max_tokens=1, extra_body={"prompt_logprobs": 1})
    assert len(reply.prompt_logprobs) == reply.usage.prompt_tokens
    assert reply.prompt_logprobs[0] is None


CHAT = cases(
    *(chat, reasoning_apart, streamed, usage_of_a_stream, usage_in_every_event),
    *(helper_of_streams, asynchronous, asynchronous_stream, eight_at_once, raw_response),
    *(left_stream, several_choices, seed, stop_strings),
    *(log_probabilities, top_log_probabilities, streamed_log_probabilities, history),
    *(reasoning_in_history, system_and_names, parts_of_content, max_tokens),
    *(max_completion_tokens, draws, bookkeeping, logit_bias, reasoning_effort),
    *(thinking_budget, prompt_logprobs),
)
