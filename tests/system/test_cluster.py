"""Five real services and the real small model, driven as users drive them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import httpx
import pytest
from jsonschema import Draft202012Validator
from openai import AsyncOpenAI

from protos import gateway_pb2, gateway_pb2_grpc
from tests.fakes.local_cluster import MODEL, LocalCluster, chat, until
from tests.fakes.reference import greedy_text

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="module")]

PROMPTS = ("Add 17, 25, 8.", "Sort 5, 3, 9.", "Count the letter r in strawberry.")
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "units": {"enum": ["metric", "imperial"]},
    },
    "required": ["city", "days", "units"],
    "additionalProperties": False,
}
NAMES = ("forecast", "history")
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in NAMES
]
FORM: Any = {"type": "json_schema", "json_schema": {"name": "forecast", "schema": SCHEMA}}


async def test_answers_equal_those_of_generate_whatever_runs_beside_them(
    client: AsyncOpenAI,
) -> None:
    prompts = [*PROMPTS, "Add 9, 9, 9, 9, 9.", "Sort 40, 30, 20, 10, 11, 12, 13."]
    answers = await asyncio.gather(*(chat(client, prompt) for prompt in prompts))
    for prompt, (reasoning, answer) in zip(prompts, answers, strict=True):
        assert (reasoning, answer) == greedy_text(MODEL, prompt)


async def test_a_seeded_request_repeats_itself(client: AsyncOpenAI) -> None:
    options: dict[str, Any] = {"temperature": 1.5, "seed": 11, "max_tokens": 60}
    first = await chat(client, PROMPTS[0], **options)
    beside = await asyncio.gather(*(chat(client, PROMPTS[0], **options) for _ in range(4)))
    assert set(beside) == {first}


async def test_grpc_generate_streams_the_same_answer(running: LocalCluster) -> None:
    request = gateway_pb2.GenerateRequest(
        model="headway-mini",
        chat=gateway_pb2.ChatMessages(
            messages=[gateway_pb2.ChatMessage(role="user", content=PROMPTS[2])]
        ),
        sampling=gateway_pb2.SamplingOptions(temperature=0.0),
    )
    text = ""
    async with grpc.aio.insecure_channel(running.grpc_address) as channel:
        async for reply in gateway_pb2_grpc.GatewayStub(channel).Generate(request):
            text += reply.text
    assert text == greedy_text(MODEL, PROMPTS[2])[1]
    assert reply.usage.completion_tokens > 0


async def test_calls_and_forms_hold_across_workers(client: AsyncOpenAI) -> None:
    """Calls that are required and answers in a form, by the small model."""
    said: Any = [{"role": "user", "content": PROMPTS[0]}]

    async def ask(**more: Any) -> Any:
        created = client.chat.completions.create
        return await created(model="headway-mini", messages=said, max_tokens=800, **more)

    for seed in range(2):
        (formed,) = (await ask(response_format=FORM, seed=seed)).choices
        assert formed.finish_reason == "stop"
        Draft202012Validator(SCHEMA).validate(json.loads(formed.message.content))
        assert formed.message.model_extra["reasoning_content"], "it thinks freely before"

    # The small model knows no tools and would think about them for long.
    tools = {"tools": TOOLS, "extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
    (required,) = (await ask(**tools, tool_choice="required", parallel_tool_calls=False)).choices
    (call,) = required.message.tool_calls
    assert (required.finish_reason, call.function.name in NAMES) == ("tool_calls", True)
    Draft202012Validator(SCHEMA).validate(json.loads(call.function.arguments))

    named = {"type": "function", "function": {"name": "history"}}
    name, arguments = "", ""
    async for chunk in await ask(**tools, tool_choice=named, stream=True):
        for piece in chunk.choices[0].delta.tool_calls or ():
            name += piece.function.name or ""
            arguments += piece.function.arguments or ""
    assert name == "history"
    Draft202012Validator(SCHEMA).validate(json.loads(arguments))


async def test_a_client_that_leaves_frees_its_kv_blocks(running: LocalCluster) -> None:
    body = {
        "model": "headway-mini",
        "stream": True,
        "ignore_eos": True,
        "max_tokens": 1500,
        "messages": [{"role": "user", "content": PROMPTS[0]}],
    }
    url = f"{running.base_url}/v1/chat/completions"
    async with (
        httpx.AsyncClient(timeout=300) as client,
        client.stream("POST", url, json=body) as response,
    ):
        lines = response.aiter_lines()
        for _ in range(12):
            await anext(lines)

    async def is_idle() -> bool:
        return await running.metric("headway_gateway_open_requests") == 0

    await until(is_idle)

    async def is_cancelled() -> bool:
        logs = [running.log_of(name) for name in ("decode-1", "decode-2", "prefill-1")]
        return any("request_cancelled" in log for log in logs)

    await until(is_cancelled)


@pytest.mark.parametrize("role", ["decode", "prefill"])
async def test_killing_workers_in_mid_answer_ends_in_the_full_correct_answer(
    running: LocalCluster, client: AsyncOpenAI, role: str
) -> None:
    prompt = "Add 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22."
    asked = [asyncio.create_task(chat(client, prompt)) for _ in range(6)]
    begun = [asyncio.Event() for _ in range(3)]
    asked += [asyncio.create_task(chat(client, prompt, begun=event)) for event in begun]
    await asyncio.gather(*(event.wait() for event in begun))
    for name in [p.spec.service_id for p in running.supervisor.processes]:
        if name.startswith(role):
            running.kill(name)
    expected = greedy_text(MODEL, prompt)
    assert [await task for task in asked] == [expected] * len(asked)
    await running.supervisor.serving()


async def test_killing_the_scheduler_loses_no_request(
    running: LocalCluster, client: AsyncOpenAI
) -> None:
    asked = [asyncio.create_task(chat(client, prompt)) for prompt in PROMPTS * 2]
    await asyncio.sleep(0.05)
    running.kill("scheduler")
    expected = [greedy_text(MODEL, prompt) for prompt in PROMPTS * 2]
    assert [await task for task in asked] == expected
    await running.supervisor.serving()
