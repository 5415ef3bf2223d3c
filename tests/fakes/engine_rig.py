"""Tiny random checkpoints, and a driver that runs requests through a backend in any schedule."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from headway.blocks import BlockPool
from headway.engine import Backend, IncomingKv
from headway.forward_pass import ForwardPass, PassItem, Sampled
from headway.request import SamplingParams, StreamKey, TokenLogprobs
from services.worker.engine.backend import TorchBackend
from services.worker.engine.options import EngineOptions, Kernels

VOCAB_SIZE = 97
MAX_MODEL_LEN = 1024
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
GREEDY = SamplingParams(temperature=0.0, max_tokens=MAX_MODEL_LEN)

torch.set_num_threads(1)


def save_checkpoint(folder: Path, family: str, **changes: Any) -> str:
    """A two-layer model with grouped queries; its weights are wide, so its text varies."""
    settings = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": MAX_MODEL_LEN,
        "initializer_range": 0.3,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    if family == "qwen2":
        settings["head_dim"] = 12  # Qwen2 derives it
    torch.manual_seed(7)
    config = cast(Any, AutoConfig).for_model(family, **(settings | changes))
    cast(Any, AutoModelForCausalLM).from_config(config).save_pretrained(folder)
    return str(folder)


@cache
def reference_model(folder: str) -> Any:
    return cast(Any, AutoModelForCausalLM).from_pretrained(folder, dtype=torch.float32).eval()


@cache
def reference_output(folder: str, prompt: tuple[int, ...], num_tokens: int) -> list[int]:
    """What ``model.generate()`` says, alone in its batch."""
    output = reference_model(folder).generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=num_tokens,
        do_sample=False,
    )
    return cast(list[int], output[0, len(prompt) :].tolist())


@cache
def backend(folder: str, block_size: int, kernels: Kernels = "auto") -> TorchBackend:
    """Of 2,048 tokens; cached, as no test leaves a mark on it that another could see."""
    num_blocks = 2048 // block_size
    return load(folder, block_size=block_size, num_blocks=num_blocks, kernels=kernels)


def load(folder: str, **options: Any) -> TorchBackend:
    return TorchBackend.load(folder, EngineOptions(**options))


def read_kv(engine: Backend, blocks: Sequence[int], *, from_host: bool = False) -> bytes:
    return b"".join(engine.read_kv(blocks, from_host=from_host))


def write_kv(
    engine: Backend, blocks: Sequence[int], shape: Sequence[int], dtype: str, data: bytes
) -> None:
    """The inverse of ``read_kv``: the blocks hold all of ``shape``'s tokens."""
    writer = engine.kv_writer(IncomingKv(blocks, shape, dtype, shape[2]))
    writer.feed(data)
    writer.finish()


@dataclass
class Run:
    """One request on its way through a backend."""

    prompt: tuple[int, ...]
    num_tokens: int
    sampling: SamplingParams = GREEDY
    key: StreamKey = field(default_factory=lambda: StreamKey("gateway", 0))
    output: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    adapter: str = ""

    @property
    def done(self) -> bool:
        return len(self.output) == self.num_tokens

    def item(self, count: int) -> PassItem:
        tokens = (*self.prompt, *self.output)
        stop = min(self.num_computed + count, len(tokens))
        return PassItem(
            key=self.key,
            token_ids=tokens[self.num_computed : stop],
            start=self.num_computed,
            block_table=self.blocks,
            sample=stop == len(tokens),
            sampling=self.sampling,
            prompt_token_ids=self.prompt,
            output_token_ids=self.output,
            adapter=self.adapter,
        )

    def take(self, item: PassItem, sampled: Sampled | None) -> None:
        self.num_computed += len(item.token_ids)
        assert item.sample == (sampled is not None)
        if sampled is not None:
            self.output.append(sampled.token_id)
            self.logprobs.append(sampled.logprobs)


class Schedule:
    """Drives runs through a backend: who is in a pass, and with how much, is drawn."""

    def __init__(self, engine: Backend, *, chunk: int = 64, seed: int = 0) -> None:
        self.engine = engine
        self.chunk = chunk
        self.rng = random.Random(seed)
        self.pool = BlockPool(engine.info.num_blocks, engine.info.block_size)
        # Used blocks come back in a shuffled order, so that tables are never neat.
        churn: list[int] = []
        self.pool.grow(churn, engine.info.num_blocks * engine.info.block_size)
        self.rng.shuffle(churn)
        self.pool.release(churn)

    def step(self, runs: Sequence[Run]) -> None:
        """One pass over these runs, each with 1 to ``chunk`` tokens while the chunk lasts."""
        budget, planned = self.chunk, []
        for run in runs:
            if budget and not run.done:
                item = run.item(self.rng.randint(1, budget))
                held = self.pool.grow(run.blocks, run.num_computed + len(item.token_ids))
                assert held, "the test asks for more blocks than there are"
                budget -= len(item.token_ids)
                planned.append((run, item))
        self._run(planned)

    def step_by(self, runs: Sequence[Run], count: int) -> None:
        """One pass over all of these runs, with at most ``count`` tokens of each."""
        planned = [(run, run.item(count)) for run in runs]
        for run, item in planned:
            assert self.pool.grow(run.blocks, run.num_computed + len(item.token_ids))
        self._run(planned)

    def _run(self, planned: Sequence[tuple[Run, PassItem]]) -> None:
        result = self.engine.run(ForwardPass(1, tuple(item for _, item in planned)))
        drawn = {sampled.key: sampled for sampled in result.sampled}
        for run, item in planned:
            run.take(item, drawn.get(run.key))

    def complete(self, runs: Sequence[Run]) -> list[list[int]]:
        """Run to the end; each pass leaves some requests out."""
        for number, run in enumerate(runs):
            run.key = StreamKey("gateway", number)
        while any(not run.done for run in runs):
            chosen = [run for run in runs if self.rng.random() < 0.8]
            self.rng.shuffle(chosen)
            self.step(chosen)
            for run in runs:
                if run.done:
                    self.pool.release(run.blocks)
        return [run.output for run in runs]


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    rng = random.Random(seed * 1000 + length)
    return tuple(rng.randrange(VOCAB_SIZE) for _ in range(length))
