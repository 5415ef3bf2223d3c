"""A plain vLLM as the endpoint of the engine ``openai``: the fields that only it can prove."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.vllm.server import EngineLimits, Server, serving
from headway.engine import Drawn, EngineStepped
from headway.request import BadWord, Constraints
from services.worker.openai.endpoint import EndpointArgs, examine
from services.worker.openai.engine import OpenAIEngine
from tests.fakes.worker_service import MODEL, make_request

pytest.importorskip("vllm", reason="vLLM is not installed in this environment: make test-vllm")

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


async def test_bad_words_and_log_probabilities_of_a_prompt(tmp_path: Path) -> None:
    limits = EngineLimits(max_running=8)
    server = Server(str(MODEL), limits, ("--max-model-len", "512"))
    async with serving(server, tmp_path, "vllm") as target:
        args = EndpointArgs(url=target.url)
        known = await asyncio.to_thread(examine, args, str(MODEL), 0)
        assert known.takes_bad_words
        assert known.scores_prompts
        engine, drawn = OpenAIEngine(known, 32), list[Drawn]()

        def stepped(step: EngineStepped) -> None:
            drawn.extend(step.drawn)

        async def ask(number: int, **changes: Any) -> list[Drawn]:
            request = make_request("", number, max_tokens=8)
            prompt = tuple(b"Add 17, 25, 8.")
            sampling = replace(request.sampling, **changes)
            engine.add(replace(request, prompt_token_ids=prompt, sampling=sampling), 0)
            while not any(each.key == request.key and each.finish_reason for each in drawn):
                await asyncio.sleep(0.01)
            return [each for each in drawn if each.key == request.key]

        engine.start(stepped)
        try:
            free = [token for each in await ask(1) for token in each.token_ids]
            drawn_word = next(token for token in free if not chr(token).isspace())
            bad = Constraints(bad_words=(BadWord((drawn_word,)), BadWord((32, drawn_word))))
            bound = await ask(2, constraints=bad, num_prompt_logprobs=2)
        finally:
            await engine.close()
    assert len(free) == 8
    assert drawn_word not in [token for each in bound for token in each.token_ids]
    scores = bound[0].logprobs[0].prompt
    assert len(scores) == len(b"Add 17, 25, 8.") - 1
    assert all(len(each.top_token_ids) == 2 for each in scores)
    assert all(each.logprob <= each.top_logprobs[0] + 1e-4 <= 1e-4 for each in scores)
