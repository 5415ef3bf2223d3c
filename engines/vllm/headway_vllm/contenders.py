"""vLLM's engine for ``headway bench engine``: Headway plans its passes, or vLLM does."""

from __future__ import annotations

from collections.abc import Sequence

from headway.engine import Backend
from headway_vllm.loading import load, load_stock
from services.worker.config import WorkerConfig

BLOCK_SIZE = 32  # tokens of a KV block, as vLLM's CPU attention wants them
CHUNK_TOKENS = 2048


def _config(
    model: str, dtype: str, num_threads: int, concurrency: int, max_model_len: int
) -> WorkerConfig:
    """Return a worker's with KV for ``concurrency`` of the longest requests."""
    return WorkerConfig(
        service_id="w",
        model=model,
        dtype=dtype,
        engine="vllm",
        engine_args={"block_size": BLOCK_SIZE},
        num_blocks=concurrency * max_model_len // BLOCK_SIZE,
        max_model_len=max_model_len,
        max_running=concurrency,
        chunk_tokens=CHUNK_TOKENS,
        num_threads=num_threads,
        prefix_caching=False,
    )


def backend(model: str, dtype: str, *sizes: int) -> tuple[Backend, str]:
    """Return a warm engine for passes that Headway plans, and its version."""
    loaded = load(_config(model, dtype, *sizes))
    return loaded, _version()


class StockLoop:
    """vLLM's engine under its own scheduler and sampler; requests go in and tokens come out."""

    def __init__(self, model: str, dtype: str, *sizes: int) -> None:
        self._parts = load_stock(_config(model, dtype, *sizes))
        self._num_seen = 0
        self.version = _version()

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
        """Return greedy continuations of ``num_tokens`` each."""
        outputs: dict[str, list[int]] = {}
        for prompt in prompts:
            self._num_seen += 1
            outputs[str(self._num_seen)] = []
            self._parts.add(str(self._num_seen), prompt, num_tokens, (), "")
        while self._parts.has_requests:
            for each in self._parts.step() or ():
                outputs[each.request_id] += each.new_token_ids
        return list(outputs.values())


def _version() -> str:
    import vllm

    return f"vllm {vllm.__version__}"
