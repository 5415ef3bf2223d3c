"""A real model behind ``headway up``: prefilled on one worker, decoded on another."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from tests.fakes.local_cluster import local_cluster
from tests.fakes.real_model import QUESTIONS, REAL_MODEL, needs_real_model

pytestmark = [needs_real_model, pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(900)]


async def test_a_real_model_answers_questions(store_url: str, tmp_path: Path) -> None:
    flags = ("--model", REAL_MODEL, "--prefill", "1", "--decode", "1")
    async with local_cluster(store_url, "real-model", tmp_path, *flags) as running:
        client = AsyncOpenAI(
            base_url=f"{running.base_url}/v1", api_key="none", max_retries=0, timeout=600
        )
        (model,) = [each.id async for each in client.models.list()]
        answers = await asyncio.gather(*(_ask(client, model, each) for each in QUESTIONS[:4]))
        await client.close()
    assert "Paris" in answers[0]
    assert "red" in answers[2].lower()
    assert all(answers)


async def _ask(client: AsyncOpenAI, model: str, question: str) -> str:
    answer = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], temperature=0, max_tokens=40
    )
    return answer.choices[0].message.content or ""
