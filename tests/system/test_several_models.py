"""Two models behind one gateway, as ``headway up models.toml`` starts them: real processes."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import openai
import pytest
from safetensors.torch import load_file, save_file

from tests.fakes.local_cluster import MODEL, local_cluster, until

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]

ASKED = "Add 17, 25, 8."


def other_model(folder: Path) -> Path:
    """A copy of the small model with another template, whose last layer says the contrary."""
    shutil.copytree(MODEL, folder, ignore=shutil.ignore_patterns("predictor"))
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = -weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = "{% for m in messages %}{{ m.content }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


async def is_known(client: openai.AsyncOpenAI, name: str) -> bool:
    """True once the leader knows workers of the model: the other one's may have joined first."""
    try:
        await client.completions.create(model=name, prompt="Add", max_tokens=1)
    except openai.InternalServerError:
        return False
    return True


async def test_each_model_answers_with_its_own_workers(
    store_url: str, cluster: str, tmp_path: Path
) -> None:
    file = tmp_path / "models.toml"
    file.write_text(
        f"""
[[model]]
name = "mini"
path = "{MODEL}"

[[model]]
name = "contrary"
path = "{other_model(tmp_path / "contrary")}"
unified = 1
max_model_len = 128
"""
    )
    logs = tmp_path / "logs"
    logs.mkdir()
    async with local_cluster(store_url, cluster, logs, str(file), model="") as running:
        assert {(worker.model, worker.role) for worker in await running.workers()} == {
            ("mini", "prefill"),
            ("mini", "decode"),
            ("contrary", "unified"),
        }
        client = openai.AsyncOpenAI(
            api_key="none", base_url=f"{running.base_url}/v1", max_retries=0, timeout=300
        )
        assert [model.id async for model in client.models.list()] == ["mini", "contrary"]
        said, counted = {}, {}
        for name in ("mini", "contrary"):
            await until(partial(is_known, client, name))
            answer = await client.chat.completions.create(
                model=name, messages=[{"role": "user", "content": ASKED}], temperature=0
            )
            said[name] = answer.choices[0].message.content
            assert answer.usage is not None
            counted[name] = answer.usage.prompt_tokens
        assert said["mini"] == "50"
        assert said["contrary"] != "50"
        assert counted["contrary"] < counted["mini"]
        with pytest.raises(openai.NotFoundError, match="serves 'mini', 'contrary'"):
            await client.chat.completions.create(
                model="third", messages=[{"role": "user", "content": ASKED}]
            )
        await client.close()
