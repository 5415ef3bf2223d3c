"""What vLLM does beyond plain text, in Headway's order: the tokens are those of stock vLLM."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.fakes.vllm_models import (
    IMAGE,
    adapter,
    eagle_head,
    guessing_model,
    seeing_model,
    windowed_model,
)
from tests.fakes.vllm_plain import Ask, PlainVllm, Told
from tests.fakes.vllm_rig import BLOCKS, MODEL, NUM_REQUESTS, prompt_of

pytest.importorskip("vllm", reason="vLLM is not installed in this environment: make test-vllm")

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

FORM = r"[a-m]{30,40}-[n-z]{20,30}"
LONG = {"max_tokens": 80, "ignore_eos": True}
DRAFTS = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
}


def text(number: int) -> dict[str, Any]:
    """A prompt of 40 to 320 tokens."""
    return {"prompt_token_ids": list(prompt_of(number))}


def formed() -> dict[str, Any]:
    """Parameters of an answer that vLLM's own grammar holds to a form."""
    from vllm.sampling_params import StructuredOutputsParams

    return {"max_tokens": 80, "structured_outputs": StructuredOutputsParams(regex=FORM)}


@dataclass
class Feature:
    """An engine that uses one of vLLM's features, and requests that use it."""

    engine: PlainVllm
    asks: list[Ask]

    @cached_property
    def stock(self) -> Told:
        """What vLLM answers under its own scheduler."""
        told = self.engine.ask(self.engine.stock(), self.asks)
        assert told.num_preempted, "the pool does not force anybody out"
        return told


def speculation(folder: Path) -> Feature:
    engine = PlainVllm(str(MODEL), BLOCKS, speculative_config=DRAFTS)
    forms = [formed() if number % 4 == 3 else LONG for number in range(NUM_REQUESTS)]
    return Feature(engine, [Ask(text(number), each) for number, each in enumerate(forms)])


def windows(folder: Path) -> Feature:
    engine = PlainVllm(str(windowed_model(folder)), 3 * BLOCKS, skip_tokenizer_init=True)
    return Feature(engine, [Ask(text(number), LONG) for number in range(NUM_REQUESTS)])


def adapters(folder: Path, places: int = 2) -> Feature:
    """Requests with two adapters.

    On a CPU vLLM itself answers a request without any as if it had one that is beside it.
    """
    from vllm.lora.request import LoRARequest

    engine = _small(enable_lora=True, max_loras=places, max_lora_rank=8)
    own = [LoRARequest(f"a{n}", n, str(adapter(folder / str(n), n))) for n in (1, 2)]
    asks = [replace(ask, adapter=own[n % 3 % 2]) for n, ask in enumerate(_short())]
    return Feature(engine, asks)


def scarce_adapters(folder: Path) -> Feature:
    """The same where a step serves one of them: vLLM passes over requests with the other."""
    return adapters(folder, 1)


def grammars(folder: Path) -> Feature:
    engine = PlainVllm(str(MODEL), BLOCKS)
    return Feature(engine, [Ask(text(number), formed()) for number in range(NUM_REQUESTS)])


def images(folder: Path) -> Feature:
    """Pairs of requests with one text and two images."""
    from PIL import Image

    def ask(number: int) -> Ask:
        words = "abcdefgh"[number // 2] * (30 * (number // 2 + 1))
        shape = (IMAGE, IMAGE, 3)
        pixels = np.random.default_rng(number).integers(0, 255, shape, dtype=np.uint8)
        seen = {"image": Image.fromarray(pixels)}
        return Ask({"prompt": f"Look at {words}", "multi_modal_data": seen}, LONG)

    engine = PlainVllm(str(seeing_model(folder)), 16, limit_mm_per_prompt={"image": 1})
    return Feature(engine, [ask(number) for number in range(NUM_REQUESTS)])


def shared_heads(folder: Path) -> Feature:
    """Two processes, each with its share of the heads."""
    return Feature(_small(tensor_parallel_size=2), _short())


def stages(folder: Path) -> Feature:
    """Two processes, each with half of the layers: a step is planned while others run."""
    engine = _small(pipeline_parallel_size=2)
    # On a CPU the second makes its buffers in a run that vLLM leaves out where nothing is compiled.
    engine.core.model_executor.collective_rpc(_run_once)
    return Feature(engine, _short())


def drafts(folder: Path) -> Feature:
    """A model that drafts, with KV of its own: the small model guesses for itself."""
    config = {"method": "draft_model", "model": str(MODEL), "num_speculative_tokens": 2}
    return Feature(_small(speculative_config=config), _short())


def eagle(folder: Path) -> Feature:
    """A head that drafts from the model's last states (EAGLE)."""
    head = eagle_head(folder / "head")
    config = {"method": "eagle", "model": str(head), "num_speculative_tokens": 2}
    return _guessing(folder / "model", config)


def next_tokens(folder: Path) -> Feature:
    """A layer of the model itself that drafts (MTP)."""
    return _guessing(folder, {"method": "mtp", "num_speculative_tokens": 1})


def transfers(folder: Path) -> Feature:
    """A connector has the KV of prompts: of what runs on a CPU, the one that makes it up."""
    config = {"kv_connector": "DecodeBenchConnector", "kv_role": "kv_both"}
    return Feature(_small(kv_transfer_config=config), _short())


def _small(model: Path = MODEL, **options: Any) -> PlainVllm:
    sizes = {"max_model_len": 160, "kv_cache_memory_bytes": 1 << 26}
    return PlainVllm(str(model), 9, **sizes, **options)


def _guessing(folder: Path, config: Mapping[str, Any]) -> Feature:
    model = guessing_model(folder)
    return Feature(_small(model, speculative_config=config, skip_tokenizer_init=True), _short())


def _short() -> list[Ask]:
    """Requests of few steps: adapters take long, and two processes wait for each other."""
    words = prompt_of(3)
    return [
        Ask({"prompt_token_ids": list(words[n : 40 + 11 * n])}, {**LONG, "max_tokens": 30})
        for n in range(NUM_REQUESTS)
    ]


def _run_once(worker: Any) -> None:
    worker.model_runner.profile_run()


FEATURES: list[Callable[[Path], Feature]] = [
    speculation,
    windows,
    adapters,
    scarce_adapters,
    grammars,
    images,
    shared_heads,
    stages,
    drafts,
    eagle,
    next_tokens,
    transfers,
]


@pytest.fixture(scope="module", params=FEATURES, ids=lambda each: each.__name__)
def feature(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Feature]:
    found: Feature = request.param(tmp_path_factory.mktemp("model"))
    yield found
    found.engine.close()


def uses_it(name: str, feature: Feature) -> bool:
    """Return whether the answers show that the feature was in use."""
    told, asks = feature.stock, feature.asks
    match name:
        case "speculation" | "drafts" | "eagle" | "next_tokens":
            return sum(map(len, told.steps)) < sum(map(len, told.outputs))
        case "windows":
            return feature.engine.num_kinds > 1
        case "transfers":
            return set(told.steps[0].values()) == {1}
        case "shared_heads" | "stages":
            return bool(feature.engine.core.vllm_config.parallel_config.world_size == 2)
        case "adapters" | "scarce_adapters":
            other = Ask(asks[1].prompt, asks[1].sampling, asks[0].adapter)
            assert other.adapter != asks[1].adapter
            return feature.engine.ask(feature.engine.stock(), [other]).outputs[0] != told.outputs[1]
        case "images":
            pairs = zip(told.outputs[::2], told.outputs[1::2], strict=True)
            return all(one != other for one, other in pairs)
        case _:
            tokenizer = Tokenizer.from_file(f"{MODEL}/tokenizer.json")
            return all(re.fullmatch(FORM, tokenizer.decode(out[:-1])) for out in told.outputs)


def test_the_requests_use_the_feature(feature: Feature, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.id
    assert uses_it(name, feature)


def test_first_come_first_served_is_stock_vllm_step_for_step(
    feature: Feature, request: pytest.FixtureRequest
) -> None:
    told = feature.engine.ask(feature.engine.ordered("fcfs"), feature.asks)
    assert told.outputs == feature.stock.outputs
    if request.node.callspec.id != "scarce_adapters":  # a victim comes before those passed over
        assert told.steps == feature.stock.steps


@pytest.mark.parametrize("policy", ["uniboost", "headway"])
def test_another_order_has_the_tokens_of_stock_vllm(feature: Feature, policy: str) -> None:
    scheduler = feature.engine.ordered(policy)
    told = feature.engine.ask(scheduler, feature.asks)
    assert told.outputs == feature.stock.outputs
    assert told.num_preempted
    assert not scheduler.headway.queue.running
    assert not scheduler.headway.queue.waiting
    pool = scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
