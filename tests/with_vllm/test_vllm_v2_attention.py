"""KV as a GPU's attention keeps it: vLLM's Triton attention, by the interpreter, under V2.

``make test-vllm`` runs it in a process whose vLLM has V2 (``tests/fakes/triton_cpu.py``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from headway.engine import IncomingKv
from headway.forward_pass import ForwardPass, PassItem, Swap
from headway.request import SamplingParams, StreamKey
from services.worker.engine.backend import TorchBackend
from services.worker.engine.kv.pool import KvShape
from services.worker.engine.options import EngineOptions
from tests.fakes.vllm_rig import MODEL, prompt_of, worker_config

pytest.importorskip("vllm", reason="vLLM is not installed in this environment: make test-vllm")
if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") != "1":
    pytest.skip("needs -p tests.fakes.triton_cpu: make test-vllm", allow_module_level=True)

from headway_vllm.backend import VllmBackend
from headway_vllm.kv import planes_of
from headway_vllm.loading import load_parts

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
TRITON = "vllm.v1.attention.backends.triton_attn.TritonAttentionBackend"
KEY = StreamKey("g", 1)


@dataclass
class Engines:
    """The two ends of a transfer, each with a request's blocks."""

    vllm: VllmBackend
    torch: TorchBackend
    attention: str

    def end(self, name: str) -> tuple[Any, list[int]]:
        """An engine, and blocks for 120 tokens."""
        return (self.vllm, [4, 2, 11, 6]) if name == "vllm" else (self.torch, list(range(20, 28)))


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    from vllm.platforms import current_platform
    from vllm.v1.attention import selector

    selector._cached_get_attn_backend.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        chosen = classmethod(lambda *_, **__: TRITON)
        patch.setattr(type(current_platform), "get_attn_backend_cls", chosen)
        patch.setattr(torch.cuda, "get_device_capability", lambda *_, **__: (9, 0))
        parts, num_blocks, _ = load_parts(worker_config(engine="vllm"))
        vllm = VllmBackend(parts, num_blocks, 4, None)
        vllm.warm_up()
        options = EngineOptions(num_blocks=64, block_size=16, dtype="float32", num_threads=1)
        own = TorchBackend.load(str(MODEL), options)
        own.warm_up()
        yield Engines(vllm, own, parts.attention)
        own.close()
        vllm.close()
    selector._cached_get_attn_backend.cache_clear()


def run(engine: Any, tokens: list[int], start: int, blocks: list[int], **more: Any) -> Any:
    params, new = SamplingParams(temperature=0.0, num_logprobs=3), tuple(tokens[start:])
    prompt, output = tuple(tokens[:70]), tuple(tokens[70:])
    item = PassItem(KEY, new, start, blocks, True, params, prompt, output)
    return engine.run(ForwardPass(1, (item,), hidden=(0,), **more))


def greedy(engine: Any, blocks: list[int], tokens: list[int], start: int, count: int) -> list[int]:
    """The next tokens of a context whose KV before ``start`` is in the blocks."""
    found = list(tokens)
    for _ in range(count):
        result = run(engine, found, start, blocks)
        start = len(found)
        found.append(result.sampled[0].token_id)
    return found[len(tokens) :]


def test_its_logits_and_states_are_those_of_headways_own_engine(engines: Engines) -> None:
    assert engines.attention == "TRITON_ATTN"
    prompt = list(prompt_of(2)[:70])
    ours = run(engines.vllm, prompt, 0, engines.end("vllm")[1])
    theirs = run(engines.torch, prompt, 0, engines.end("torch")[1])
    np.testing.assert_allclose(ours.hidden.values, theirs.hidden.values, atol=4e-3)
    (one,), (other,) = ours.sampled, theirs.sampled
    assert one.token_id == other.token_id
    assert one.logprobs.top_logprobs == pytest.approx(other.logprobs.top_logprobs, abs=1e-4)


@pytest.mark.parametrize(("sends", "takes"), [("vllm", "torch"), ("torch", "vllm")])
def test_its_kv_goes_to_and_from_headways_own_engine(
    engines: Engines, sends: str, takes: str
) -> None:
    (source, own), (target, theirs) = engines.end(sends), engines.end(takes)
    assert source.info.kv_layout == target.info.kv_layout == "tokens"
    prompt = list(prompt_of(2)[:70])
    expected = greedy(source, own, prompt, 0, 5)
    filled = own[: -(-70 // source.info.block_size)]
    shape, dtype = source.kv_shape(len(filled)), source.info.dtype
    writer = target.kv_writer(IncomingKv(theirs, shape, dtype, 70))
    for piece in source.read_kv(filled):
        writer.feed(piece)
    writer.finish()
    assert greedy(target, theirs, [*prompt, expected[0]], 70, 4) == expected[1:]


def test_its_kv_comes_back_from_host_memory(engines: Engines) -> None:
    engine, blocks = engines.end("vllm")
    prompt, others = list(prompt_of(2)[:70]), [7, 8, 9]
    expected = greedy(engine, blocks, prompt, 0, 4)
    host = (0, 1, 2)  # its first 70 tokens leave, and others come over the same blocks
    engine.run(ForwardPass(1, (), swapped_out=(Swap(KEY, tuple(blocks[:3]), 70, host),)))
    greedy(engine, blocks, list(prompt_of(3)[:70]), 0, 1)
    engine.run(ForwardPass(1, (), swapped_in=(Swap(KEY, tuple(others), 70, host),)))
    assert greedy(engine, others, [*prompt, expected[0]], 70, 3) == expected[1:]


def test_kv_in_a_layout_that_is_not_known_is_nobodys_to_read() -> None:
    shape = KvShape(num_layers=1, num_kv_heads=2, head_dim=4, dtype="float32")
    cache = torch.arange(3 * 2 * 32 * 8, dtype=torch.float32).view(3, 2, 32, 8)
    known = planes_of("FLASH_ATTN", shape, 32, [cache])
    assert known is not None
    assert [plane[1, 1, 5, 0].item() for plane in known] == [cache[1, 1, 5, n] for n in (0, 4)]
    assert planes_of("SOME_ATTN", shape, 32, [cache]) is None
    assert planes_of("FLASH_ATTN", shape, 16, [cache]) is None  # its blocks are others'
    assert planes_of("FLASH_ATTN", shape, 32, [cache.to(torch.float16)]) is None
