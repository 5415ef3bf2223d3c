"""Long answers are written in turns, a little at a time, beside all else that the loop does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from services.gateway.slices import Slices
from tests.fakes.gateway_harness import Cluster


def steps(name: str, log: list[str], num: int = 3) -> Iterator[None]:
    """Steps that each take longer than a slice."""
    for _ in range(num):
        time.sleep(0.003)
        log.append(name)
        yield


def tick(log: list[str], num: int) -> None:
    """Something else that the loop does, again and again."""
    log.append("tick")
    if num:
        asyncio.get_running_loop().call_soon(tick, log, num - 1)


async def test_answers_take_turns_and_others_come_between() -> None:
    log: list[str] = []
    slices = Slices()
    slices.add(steps("a", log))
    slices.add(steps("b", log))
    tick(log, 6)
    await asyncio.sleep(0.1)
    assert [each for each in log if each != "tick"] == ["a", "b"] * 3
    assert log[:4] == ["tick", "a", "tick", "b"]


async def test_one_that_fails_holds_nobody_up() -> None:
    def failing() -> Iterator[None]:
        yield
        raise ValueError("a bug")

    log: list[str] = []
    slices, errors = Slices(), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
    slices.add(failing())
    slices.add(steps("b", log))
    await asyncio.sleep(0.1)
    assert log == ["b"] * 3
    assert len(errors) == 1, "it is logged"


@pytest.mark.parametrize("num_ranks", [0, 20])
async def test_an_answer_with_many_log_probabilities_is_whole(
    running: Cluster, num_ranks: int
) -> None:
    fields: dict[str, Any] = {"model": "tiny", "prompt": "abc" * 20, "max_tokens": 2, "n": 3}
    completions = running.openai().completions
    found: Any = await completions.create(
        **fields, echo=True, logprobs=num_ranks, extra_body={"prompt_logprobs": num_ranks}
    )
    for choice in found.choices:
        told = choice.logprobs
        assert choice.text == "abc" * 20 + "ab"
        assert told.tokens == [*choice.text]
        assert told.token_logprobs == [None, *[-0.5] * 61]
        assert told.text_offset == [*range(62)]
        first, *tops = told.top_logprobs[:60]
        assert first is None
        assert {len(top) for top in tops} == {num_ranks}
        assert len(choice.prompt_logprobs) == 60
    assert found.usage.completion_tokens == 6
