"""KV that waits in host memory comes back as it was, while others use its blocks."""

from __future__ import annotations

import pytest

from headway.engine import ModelSize, PassFailure
from headway.errors import Code, HeadwayError
from headway.forward_pass import SAVED, ForwardPass, Swap
from headway.messages import Dispatch, UnitBatch
from services.worker.config import WorkerConfig
from services.worker.engine.backend import TorchBackend
from services.worker.engine.kv import host as host_kv
from services.worker.loading import host_blocks_per_unit
from tests.fakes.engine_rig import Run, load, prompt, read_kv, reference_output
from tests.fakes.memory_rig import MODEL, Client, EngineWorker
from tests.fakes.requests import a_request


def engine(llama: str, num_host_blocks: int = 9) -> TorchBackend:
    return load(llama, num_blocks=8, block_size=4, num_host_blocks=num_host_blocks)


def step(engine: TorchBackend, run: Run, out: Swap | None = None, back: Swap | None = None) -> None:
    item = run.item(99)
    saved, restored = (out,) if out else (), (back,) if back else ()
    result = engine.run(ForwardPass(1, (item,), swapped_out=saved, swapped_in=restored))
    assert (result.swap_time > 0) == bool(out or back)
    run.take(item, result.sampled[0])


@pytest.mark.parametrize("staged_bytes", [1, 2**28])
def test_two_requests_take_turns_in_the_same_blocks(
    llama: str, monkeypatch: pytest.MonkeyPatch, staged_bytes: int
) -> None:
    monkeypatch.setattr(host_kv, "STAGED_BYTES", staged_bytes)
    backend, first, second = engine(llama), Run(prompt(9), 6), Run(prompt(14), 4)
    second.key = second.key._replace(stream_id=1)
    first.blocks = [7, 2, 3, 5]
    step(backend, first)
    step(backend, first)
    away = Swap(first.key, (7, 2, 3), 10, (8, 0, 1))
    second.blocks = [3, 7, 2, 1, 0]
    step(backend, second, out=away)
    other = Swap(second.key, (3, 7, 2, 1), 14, (2, 3, 4, 5))
    first.blocks = [1, 3, 2, 6]
    step(backend, first, out=other, back=Swap(first.key, (1, 3, 2), 10, (8, 0, 1)))
    second.blocks = [0, 4, 5, 7, 3]
    step(backend, second, back=Swap(second.key, (0, 4, 5, 7), 14, (2, 3, 4, 5)))
    assert first.output == reference_output(llama, first.prompt, 3)
    assert second.output == reference_output(llama, second.prompt, 2)


def test_kv_comes_back_beside_a_pass_of_others(llama: str) -> None:
    backend, first, second = engine(llama), Run(prompt(9), 6), Run(prompt(6), 4)
    second.key = second.key._replace(stream_id=1)
    first.blocks, second.blocks = [7, 2, 3], [7, 3, 2]
    step(backend, first)
    step(backend, second, out=Swap(first.key, (7, 2, 3), 9, (8, 0, 1)))
    step(backend, second, back=Swap(first.key, (1, 0, 5), 9, (8, 0, 1)))
    first.blocks = [1, 0, 5]
    step(backend, first)
    assert first.output == reference_output(llama, first.prompt, 2)
    assert second.output == reference_output(llama, second.prompt, 2)


@pytest.mark.parametrize("staged_bytes", [1, 2**28])
def test_cached_kv_is_saved_while_a_pass_reads_it(
    llama: str, monkeypatch: pytest.MonkeyPatch, staged_bytes: int
) -> None:
    monkeypatch.setattr(host_kv, "STAGED_BYTES", staged_bytes)
    backend, run = engine(llama), Run(prompt(10), 6)
    run.blocks = [4, 1, 6]
    step(backend, run)
    copy = Swap(SAVED, (4, 1), 8, (5, 3))
    result = backend.run(ForwardPass(2, (run.item(99),), saved=(copy,)))
    assert result.swap_time > 0
    data = read_kv(backend, (4, 1))
    assert b"".join(backend.read_kv((5, 3), from_host=True)) == data


def test_turns_on_a_small_pool_say_what_they_say_on_a_large_one(llama: str) -> None:
    """Five conversations, of which the device holds one, and host memory all."""
    large, small = Client(), Client()
    pools = (
        EngineWorker("large", load(llama, num_blocks=200, block_size=4), large),
        EngineWorker(
            "small",
            load(llama, num_blocks=14, block_size=4, num_host_blocks=200),
            small,
            swap_time=1e-9,
            prefix_caching=True,
            watermark=0.0,
        ),
    )
    turns = {name: prompt(13, name) for name in range(5)}
    for stream_id in range(15):
        name = stream_id % 5
        request = a_request(stream_id, turns[name], model=MODEL)
        for worker in pools:
            worker.post(Dispatch(stream_id + 1, (UnitBatch(0, (request,)),)))
            while worker.run_pass():
                pass
        assert small.output(stream_id) == large.output(stream_id)
        turns[name] = (*turns[name], *large.output(stream_id), 7, 8)
    counts = pools[1].core.prefix_counts
    assert counts.num_host_hit_tokens > counts.num_asked_tokens / 2
    assert list(pools[1].leaks()) == []


def test_a_swap_that_cannot_be_blames_its_requests(llama: str) -> None:
    backend = engine(llama, 0)
    away = Swap(Run((1,), 1).key, (0,), 4, (0,))
    with pytest.raises(PassFailure, match="no host memory") as refused:
        backend.run(ForwardPass(1, (), swapped_out=(away,)))
    assert refused.value.keys == (away.key,)
    assert backend._pool.writable.is_set()


def test_more_host_memory_than_there_is_is_refused(llama: str) -> None:
    with pytest.raises(HeadwayError, match=r"host_kv_gib: .* GiB free") as refused:
        engine(llama, 2**40)
    assert refused.value.code is Code.RESOURCE_EXHAUSTED


def test_host_memory_is_shared_out_among_units_in_whole_blocks() -> None:
    size = ModelSize(kv_bytes_per_token=2**16, max_model_len=1024, free_bytes=None)
    config = WorkerConfig(service_id="w", host_kv_gib=0.5, dp=3, block_size=16)
    assert host_blocks_per_unit(config, size) == 170
    assert host_blocks_per_unit(config.model_copy(update={"host_kv_gib": 0.0}), size) == 0
    with pytest.raises(HeadwayError, match=r"host_kv_gib is 0\.001.*a block for each DP unit"):
        host_blocks_per_unit(config.model_copy(update={"host_kv_gib": 0.001}), size)
