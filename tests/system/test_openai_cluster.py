"""A cluster whose engine is another cluster's OpenAI endpoint, as users start it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from cli import up
from headway.errors import HeadwayError
from services.local.refusals import refuse_wrong_options
from tests.fakes.local_cluster import MODEL, local_cluster, until
from tests.fakes.reference import greedy_text

PROMPTS = ("Add 17, 25, 8.", "Sort 5, 3, 9.", "Count the letter r in strawberry.")


async def ask(client: AsyncOpenAI, prompt: str) -> tuple[str, str]:
    reply = await client.chat.completions.create(
        model="headway-mini",
        messages=[{"role": "user", "content": prompt}],
        temperature=0,
        timeout=300,
    )
    message = reply.choices[0].message
    return getattr(message, "reasoning_content", None) or "", message.content or ""


@pytest.mark.system
@pytest.mark.slow
async def test_answers_through_an_endpoint_equal_those_of_generate_though_its_worker_dies(
    store_url: str, tmp_path: Path
) -> None:
    async with local_cluster(
        store_url,
        "behind",
        tmp_path / "behind",
        "--unified",
        "1",
        "--prefill",
        "0",
        "--decode",
        "0",
    ) as behind:
        args = json.dumps({"url": behind.base_url})
        flags = ("--engine", "openai", "--engine-args", args)
        async with local_cluster(store_url, "front", tmp_path / "front", *flags) as front:
            assert [m.member_id for m in await front.workers()] == ["unified-1"]
            log = front.log_of("unified-1")
            assert "engine_plans_itself" in log
            assert "KV neither leaves nor arrives" in log
            client = front.openai()
            answers = [asyncio.create_task(ask(client, prompt)) for prompt in PROMPTS]

            async def has_begun() -> bool:
                return await front.metric("headway_gateway_output_tokens_total") > 3

            await until(has_begun)
            front.kill("unified-1")
            for prompt, answer in zip(PROMPTS, await asyncio.gather(*answers), strict=True):
                assert answer == greedy_text(MODEL, prompt)
            chosen = await client.completions.create(
                model="headway-mini",
                prompt="Add 17, 25, 8.",
                extra_body={"structured_outputs": {"choice": ["yes", "no"]}},
            )
            assert chosen.choices[0].text in ("yes", "no")
            through, direct = [
                await each.completions.create(
                    model="headway-mini",
                    prompt="Add 17, 25, 8.",
                    temperature=0,
                    max_tokens=8,
                    extra_body={"prompt_logprobs": 2, "bad_words": ["4", "5"]},
                )
                for each in (client, behind.openai())
            ]
            assert through.choices[0].text == direct.choices[0].text
            assert set("45").isdisjoint(through.choices[0].text)
            theirs, ours = [
                each.choices[0].to_dict()["prompt_logprobs"] for each in (direct, through)
            ]
            assert isinstance(ours, list)
            assert through.usage is not None
            assert len(ours) == through.usage.prompt_tokens
            assert ours == theirs


def test_roles_that_an_endpoint_cannot_have_are_refused_before_the_start(tmp_path: Path) -> None:

    given = ["--engine", "openai", "--engine-args", '{"url": "http://127.0.0.1:9"}']
    with pytest.raises(HeadwayError, match="--prefill 0 --decode 0 --unified N"):
        refuse_wrong_options(up.parse([*given, "--decode", "1", "--prefill", "1"]), tmp_path)


def test_an_engine_that_is_not_there_is_refused_before_the_start(tmp_path: Path) -> None:

    with pytest.raises(HeadwayError, match="engine is 'tensorrt'"):
        refuse_wrong_options(up.parse(["--engine", "tensorrt"]), tmp_path)
