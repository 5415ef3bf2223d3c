"""The sixth step: vLLM on the card, by itself and under Headway's plans, in one process.

It needs ``headway-vllm`` and a vLLM for the card. Nothing of that has ever been run on one, so the
answers come first, and the KV. A dry run takes the small model.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch

from bench.card import device as card
from bench.card.ahead import DrivenEngine, random_prompts
from bench.card.cases import SHAPES
from bench.card.checkpoint import save_checkpoint
from bench.card.report import CardReport
from bench.card.step import CardSetting
from services.runtime.rooms import model_folder
from services.worker.config import WorkerConfig

BATCHES = (1, 8, 32, 128)
CONTEXT = 1024
BLOCK = 32
NUM_ROUNDS = 3


def run(report: CardReport, setting: CardSetting) -> None:
    """Measure every part, over one engine."""
    device = torch.device(setting.device)
    report.add("device", card.describe(device))
    report.add("shape", setting.shape)
    missing = [name for name in ("vllm", "headway_vllm") if find_spec(name) is None]
    if missing:
        report.leave_out("vllm", f"{' and '.join(missing)}: not installed (docs/engines.md)")
        return
    bench = None
    with report.part("load"):
        bench = OverVllm(report, setting)
    if bench is None:
        return
    for name in setting.parts:
        if report.has_time(name):
            with report.part(name):
                getattr(bench, name)()


class OverVllm:
    """One vLLM engine: its own scheduler, and Headway's plans, in turns."""

    def __init__(self, report: CardReport, setting: CardSetting) -> None:
        self._report, self._setting = report, setting
        self._context = 64 if setting.is_small else CONTEXT
        self._num_tokens = 8 if setting.is_small else 64
        self._batches = (1, 2) if setting.is_small else BATCHES
        by_turns: Any = importlib.import_module("headway_vllm.by_turns")
        self._engine = by_turns.EngineByTurns(self._config())
        report.add("vllm", self._engine.describe())

    def _config(self) -> WorkerConfig:
        setting, shape = self._setting, SHAPES[self._setting.shape]
        longest = self._context + 2 * self._num_tokens
        folder = model_folder("")
        if not setting.is_small:
            device, dtype = torch.device(setting.device), card.dtype_name(shape.itemsize)
            made = save_checkpoint(setting.folder / "random-model", shape, longest, device, dtype)
            torch.cuda.empty_cache()  # vLLM needs what this process holds
            folder = str(made)
        return WorkerConfig(
            service_id="card",
            model=folder,
            engine="vllm",
            device=setting.device,
            dtype="float32" if setting.device == "cpu" else "auto",
            engine_args={"block_size": BLOCK, "untested_gpu": setting.device != "cpu"},
            num_blocks=(max(self._batches) + 2) * -(-longest // BLOCK),
            max_model_len=longest,
            chunk_tokens=8192,
            prefix_caching=False,
            async_scheduling=True,
            num_threads=1,  # threads compute in turns here: a CPU's pools would wait for each other
        )

    def answers(self) -> None:
        """Compare the answers to eight prompts, token by token."""
        prompts = random_prompts(8, self._context, 1)
        own, _ = self._engine.stock(prompts, self._num_tokens)
        counts: dict[str, object] = {"answers": len(own)}
        for name, ahead in (("in_turn", False), ("ahead", True)):
            theirs, _ = asyncio.run(self._driven(prompts, ahead))
            counts[f"equal_{name}"] = sum(a == b for a, b in zip(own, theirs, strict=True))
            counts[f"equal_tokens_{name}"] = sum(map(_equal_tokens, own, theirs))
        self._report.add("answers", counts)

    def kv(self) -> None:
        """Go on over KV that was moved through the wire's form, and over KV from host memory."""
        self._report.add("kv", self._engine.kv(random_prompts(1, self._context, 2)[0]))

    def decode(self) -> None:
        """Time decode passes of each batch, in turns."""
        rows: list[dict[str, object]] = []
        for batch in self._batches:
            if not self._report.has_time(f"decode at {batch}"):
                return
            seconds: dict[str, list[float]] = {"stock": [], "in_turn": [], "ahead": []}
            for number in range(1 + (1 if self._setting.is_small else NUM_ROUNDS)):
                prompts = random_prompts(batch, self._context, 100 + number)
                taken = {
                    "stock": self._engine.stock(prompts, self._num_tokens)[1],
                    "in_turn": asyncio.run(self._driven(prompts, False))[1],
                    "ahead": asyncio.run(self._driven(prompts, True))[1],
                }
                if number:  # round 0 warms up
                    for name, value in taken.items():
                        seconds[name].append(value)
            rows.append({"batch": batch, **{name: median(all_) for name, all_ in seconds.items()}})
            self._report.add("decode_seconds_per_pass", rows)

    async def _driven(
        self, prompts: Sequence[Sequence[int]], ahead: bool
    ) -> tuple[list[list[int]], float]:
        engine = DrivenEngine(self._engine.backend, ahead)
        try:
            self._engine.take_over()
            answering = engine.answer(prompts, self._num_tokens)
            timed = await asyncio.wait_for(answering, self._report.seconds_left or 1.0)
            return engine.outputs, timed.seconds_per_pass
        finally:
            engine.close()


def _equal_tokens(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two answers have in common before they part."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
