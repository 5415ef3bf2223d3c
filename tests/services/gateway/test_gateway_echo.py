"""Prompts that come back: their text, and their log probabilities."""

from __future__ import annotations

from typing import Any

import pytest
from openai import APIStatusError

from tests.fakes.gateway_harness import Cluster


async def complete(running: Cluster, **more: Any) -> Any:
    """The emulated worker answers with the prompt's text, every token at -0.5."""
    fields = {"model": "tiny", "prompt": "abc", "max_tokens": 2, **more}
    return await running.openai().completions.create(**fields)


async def test_a_completion_may_begin_with_its_prompt(running: Cluster) -> None:
    found = await complete(running, echo=True)
    assert found.choices[0].text == "abcab"
    stream = await complete(running, echo=True, stream=True)
    assert "".join([each.choices[0].text async for each in stream]) == "abcab"
    several = await complete(running, prompt=["abc", [100, 101]], echo=True, n=2)
    assert [each.text for each in several.choices] == ["abcab"] * 2 + ["dede"] * 2


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echo_has_the_log_probabilities_of_its_prompt(
    running: Cluster, stream: bool
) -> None:
    found = await complete(running, echo=True, logprobs=1, stream=stream)
    chunks = [each async for each in found] if stream else [found]
    told = [each.choices[0].logprobs for each in chunks if each.choices[0].logprobs]
    assert [token for each in told for token in each.tokens] == [*"abcab"]
    assert [one for each in told for one in each.token_logprobs] == [None, *[-0.5] * 4]
    assert [offset for each in told for offset in each.text_offset] == [0, 1, 2, 3, 4]
    assert [top for each in told for top in each.top_logprobs][:2] == [None, {"b": -0.5}]
    assert running.emulated.submitted[0].cache_salt, "cached tokens would have no logits"


async def test_a_prompt_alone_generates_nothing(running: Cluster) -> None:
    found = await complete(running, echo=True, logprobs=0, max_tokens=0)
    (choice,) = found.choices
    assert (choice.text, choice.finish_reason) == ("abc", "length")
    assert choice.logprobs.token_logprobs == [None, -0.5, -0.5]
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (3, 0)
    assert (await complete(running, max_tokens=0)).choices[0].text == ""


async def test_prompt_logprobs_come_as_in_vllm(running: Cluster) -> None:
    found = await complete(running, extra_body={"prompt_logprobs": 2})
    (choice,) = found.choices
    assert choice.text == "ab"
    assert choice.prompt_logprobs[0] is None
    assert choice.prompt_logprobs[1] == {
        "98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"},
        "99": {"logprob": -1.5, "rank": 2, "decoded_token": "c"},
    }
    chat: Any = await running.openai().chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "a"}], extra_body={"prompt_logprobs": 0}
    )
    assert len(chat.prompt_logprobs) == chat.usage.prompt_tokens
    with pytest.raises(APIStatusError, match="prompt_logprobs"):
        await complete(running, stream=True, extra_body={"prompt_logprobs": 1})


async def test_each_choice_has_a_prompt_of_its_own_to_score(running: Cluster) -> None:
    found = await complete(running, n=2, extra_body={"prompt_logprobs": 0})
    assert [len(each.prompt_logprobs) for each in found.choices] == [3, 3]
    assert len({each.cache_salt for each in running.emulated.submitted}) == 2


async def test_a_call_has_a_bounded_number_of_log_probabilities(running: Cluster) -> None:
    prompts = ["a" * 1000] * 60
    with pytest.raises(APIStatusError, match="at most 100000") as refused:
        await complete(running, prompt=prompts, extra_body={"prompt_logprobs": 1})
    assert refused.value.status_code == 400
    assert not running.emulated.submitted


async def test_log_probabilities_name_tokens_by_their_ids_on_request(running: Cluster) -> None:
    found = await complete(
        running, logprobs=1, extra_body={"return_tokens_as_token_ids": True}, echo=True
    )
    named = found.choices[0].logprobs
    assert named.tokens == [f"token_id:{ord(letter)}" for letter in "abcab"]
    assert named.top_logprobs[1] == {"token_id:98": -0.5}
