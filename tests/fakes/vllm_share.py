"""A vLLM engine of one process or several in a process of its own, and what it answers.

Arguments: the engine's name, the number of its processes, a folder. One process writes its KV
there, which several read, and the other way around. ``answers-ENGINE-SIZE.json`` is for the test.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from headway.engine import EngineStepped, IncomingKv
from headway.forward_pass import ForwardPass, PassItem
from headway.request import Constraints, SamplingParams, StreamKey
from services.runtime.reasoning import tokenizer_file
from tests.fakes.vllm_rig import MODEL, NUM_REQUESTS, prompt_of, request_of, worker_config
from tests.fakes.vllm_serving import HOST_BLOCKS, serve

GRAMMAR = json.dumps({"grammars": [{"lark_grammar": "start: /yes|no|[0-9]{3}/"}]})
NUM_TOKENS = 12
_PATIENCE = 600.0


def requests_of_all_kinds() -> list[Any]:
    """Greedy requests, sampled ones, and one with a grammar."""
    short = {"max_tokens": 40}
    greedy = [request_of(number, **short) for number in range(NUM_REQUESTS)]
    sampled = [request_of(n, temperature=1.0, seed=n, **short) for n in range(8, 12)]
    return [*greedy, *sampled, request_of(12, constraints=Constraints(GRAMMAR), max_tokens=3)]


def config_of(engine: str, size: int, **options: Any) -> Any:
    """A worker's, with so many processes."""
    args = {"vllm": {"tensor_parallel_size": size}} if size > 1 else {}
    return worker_config(engine=engine, engine_args=args, **options)


def with_headways_plans(size: int, folder: Path) -> dict[str, Any]:
    """Return the answers of ``--engine vllm``."""
    from headway_vllm.backend import VllmBackend
    from headway_vllm.loading import load_parts

    parts, num_blocks, _ = load_parts(config_of("vllm", size, host_kv_gib=0.01))
    backend = VllmBackend(parts, num_blocks, HOST_BLOCKS, tokenizer_file(str(MODEL)))
    backend.warm_up()
    requests = requests_of_all_kinds()
    found: dict[str, Any] = {"heads": backend.kv_shape(1)[3], "layout": backend.info.kv_layout}
    found["kept_heads"] = parts.kv_spec.num_kv_heads
    served = serve(backend, requests, "uniboost")
    counts = served.core.preemptions
    found["uniboost"] = served.outputs
    found["num_lost"] = counts.num_voluntary + counts.num_forced
    served = serve(backend, requests, "pascal", host_blocks=HOST_BLOCKS)
    found["swapped"], found["num_swaps"] = served.outputs, served.num_swaps
    found |= _states_and_kv(backend, folder / f"kv-{size}", folder / "kv-1")
    backend.close()
    return found


def _item(tokens: list[int], start: int, blocks: list[int]) -> PassItem:
    key, params = StreamKey("g", 99), SamplingParams(temperature=0.0, num_logprobs=3)
    return PassItem(key, tokens[start:], start, blocks, True, params, tokens[:100], tokens[100:])


def _states_and_kv(backend: Any, written: Path, read: Path) -> dict[str, Any]:
    """Hidden states, log probabilities, and how it goes on from KV that another has computed."""
    prompt, blocks = list(prompt_of(7)[:100]), [3, 5, 7, 9]
    first = backend.run(ForwardPass(1, (_item(prompt, 0, blocks),), hidden=(0,)))
    (sampled,) = first.sampled
    written.write_bytes(b"".join(backend.read_kv(blocks)))
    theirs = [12, 4, 20, 6, 8]
    sink = backend.kv_writer(IncomingKv(theirs, backend.kv_shape(4), "float32", 100))
    sink.feed(read.read_bytes())
    sink.finish()
    tokens, start = [*prompt, sampled.token_id], 100
    for number in range(NUM_TOKENS):
        result = backend.run(ForwardPass(number + 2, (_item(tokens, start, theirs),)))
        start = len(tokens)
        tokens.append(result.sampled[0].token_id)
    return {
        "hidden": first.hidden.values.astype(float).tolist(),
        "logprobs": sampled.logprobs.top_logprobs,
        "continued": tokens[100:],
    }


async def with_its_own_plans(size: int) -> dict[str, Any]:
    """Return the answers of ``--engine vllm-native``."""
    from headway_vllm.loading import load_native

    engine = load_native(config_of("vllm-native", size, policy="batching=uniboost"))
    steps: list[EngineStepped] = []
    engine.start(steps.append)
    requests = requests_of_all_kinds()
    for request in requests:
        engine.add(request, 0)
    drawn: list[Any] = []
    async with asyncio.timeout(_PATIENCE):
        while sum(each.finish_reason is not None for each in drawn) < len(requests):
            await asyncio.sleep(0.01)
            drawn = [each for step in steps for each in step.drawn]
    outputs: dict[int, list[int]] = {}
    for each in drawn:
        outputs.setdefault(each.key.stream_id, []).extend(each.token_ids)
    await engine.close()
    return {"uniboost": outputs, "bytes": engine.info.kv_bytes_per_token}


def main(engine: str, size: str, folder: str) -> None:
    """Answer, and write the answers down."""
    into = Path(folder)
    if engine == "vllm":
        found = with_headways_plans(int(size), into)
    else:
        found = asyncio.run(with_its_own_plans(int(size)))
    (into / f"answers-{engine}-{size}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
