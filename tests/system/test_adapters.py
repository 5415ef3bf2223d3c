"""LoRA adapters through everything: ``headway up --lora``, two phases, KV that travels."""

from __future__ import annotations

import asyncio
from pathlib import Path

import openai
import pytest
from transformers import AutoTokenizer

from tests.fakes.adapters import save_adapter
from tests.fakes.engine_rig import reference_output
from tests.fakes.local_cluster import MODEL, local_cluster

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]

PROMPT = (
    "<|im_start|>user\nTell me a joke.<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\nWhy did"
)
NUM_TOKENS = 24


async def test_each_name_says_what_its_merged_weights_say(
    store_url: str, cluster: str, tmp_path: Path
) -> None:
    """Prefill on one worker, decode on another; two adapters and the model at once, twice."""
    folders = {
        name: save_adapter(tmp_path / name, MODEL, seed=seed, size=0.3)
        for seed, name in enumerate(("sql", "poems"))
    }
    logs = tmp_path / "logs"
    logs.mkdir()
    flags = [text for name, folder in folders.items() for text in ("--lora", f"{name}={folder}")]
    flags += ["--decode", "1"]
    tokens: list[int] = AutoTokenizer.from_pretrained(MODEL)(PROMPT)["input_ids"]
    async with local_cluster(store_url, cluster, logs, *flags) as running:
        client = openai.AsyncOpenAI(
            api_key="none", base_url=f"{running.base_url}/v1", max_retries=0, timeout=300
        )
        names = [model.id async for model in client.models.list()]
        assert names == ["headway-mini", "sql", "poems"]
        answers = await asyncio.gather(
            *(
                client.completions.create(
                    model=name,
                    prompt=tokens,
                    temperature=0,
                    max_tokens=NUM_TOKENS,
                    extra_body={"ignore_eos": True, "return_token_ids": True},
                )
                for _ in range(2)
                for name in names
            )
        )
        drawn = await running.metric("headway_gateway_output_tokens_total")
        assert drawn == len(answers) * NUM_TOKENS
        await client.close()
    said = {}
    for answer in answers:
        folder = f"{folders[answer.model]}/merged" if answer.model in folders else MODEL
        found = answer.choices[0].model_dump()["token_ids"]
        expected = reference_output(folder, tuple(tokens), NUM_TOKENS)  # up to its end
        assert found[: len(expected)] == expected
        said[answer.model] = tuple(expected)
    assert len(set(said.values())) == 3
