"""gpt-oss's channels: every chat's answer is read by them, with tools or without."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gateway_harness import Cluster, cluster
from tests.fakes.tiny_model import write_model

SAID = (
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes, yes."
)
TOOLS: list[Any] = [{"type": "function", "function": {"name": "clock", "parameters": {}}}]


def without_markers(folder: Path) -> Path:
    """A model whose tokenizer has no markers of reasoning."""
    file = write_model(folder) / "tokenizer.json"
    told = json.loads(file.read_text())
    told["added_tokens"] = [each for each in told["added_tokens"] if "think" not in each["content"]]
    file.write_text(json.dumps(told))
    return folder


@pytest.fixture
async def served(tmp_path: Path, store_url: str) -> AsyncIterator[Cluster]:
    model = {"path": str(without_markers(tmp_path / "oss")), "tool_call_parser": "openai"}
    async with cluster(tmp_path, store_url, models={"oss": model}) as found:
        yield found


async def ask(served: Cluster, text: str = SAID, **more: Any) -> Any:
    return await served.openai().chat.completions.create(
        model="oss", messages=[{"role": "user", "content": text}], **more
    )


@pytest.mark.parametrize("tools", [None, TOOLS])
async def test_a_whole_answer_has_its_reasoning_apart(served: Cluster, tools: Any) -> None:
    answer = await ask(served, **({"tools": tools} if tools else {}))
    (choice,) = answer.choices
    assert choice.message.content.endswith("Yes, yes.")
    assert "<|" not in choice.message.content
    assert choice.message.reasoning_content == "Hm."
    counted = answer.usage.completion_tokens_details.reasoning_tokens
    assert len("Hm.") <= counted < answer.usage.completion_tokens


async def test_a_stream_has_it_apart_too(served: Cluster) -> None:
    thought, said = "", ""
    async for chunk in await ask(served, stream=True):
        for choice in chunk.choices:
            thought += getattr(choice.delta, "reasoning_content", None) or ""
            said += choice.delta.content or ""
    assert thought == "Hm."
    assert said.endswith("Yes, yes.")
    assert "<|" not in said


async def test_an_answer_with_a_form_has_no_channels(served: Cluster) -> None:
    (choice,) = (await ask(served, response_format={"type": "json_object"})).choices
    assert choice.message.content.endswith(SAID), "the emulated worker follows no grammar"


async def test_a_completion_is_the_models_text(served: Cluster) -> None:
    answer = await served.openai().completions.create(model="oss", prompt=SAID, max_tokens=400)
    assert answer.choices[0].text == SAID
