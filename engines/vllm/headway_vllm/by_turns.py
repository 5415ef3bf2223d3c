"""One vLLM engine by itself and under Headway's plans, in turns: what ``bench.gpu vllm`` runs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from headway.engine import IncomingKv
from headway.forward_pass import ForwardPass, PassItem, Swap
from headway.request import SamplingParams, StreamKey
from headway_vllm.ahead import AheadBackend
from headway_vllm.backend import VllmBackend
from headway_vllm.loading import load_stock
from services.worker.config import WorkerConfig

_KEY = StreamKey("by-turns", 0)
_NUM_AFTER = 6
"""Tokens that are computed over KV that has been elsewhere."""


class EngineByTurns:
    """The engine; ``backend`` runs Headway's plans on it."""

    def __init__(self, config: WorkerConfig) -> None:
        self._parts = load_stock(config)
        self._sampler = self._parts.runner.sampler
        kind = AheadBackend if self._parts.keeps_requests else VllmBackend
        num_host_blocks = -(-config.max_model_len // self._parts.kv_spec.block_size)
        self.backend = kind(self._parts, config.num_blocks, num_host_blocks, None)
        self._drawer = self._parts.runner.sampler
        self._num_seen = 0
        self.backend.warm_up()

    def describe(self) -> dict[str, object]:
        """Return what vLLM has chosen."""
        import vllm

        return {
            "version": vllm.__version__,
            "runner": type(self._parts.runner).__module__,
            "attention": self._parts.attention,
            "kv_layout": self.backend.info.kv_layout,
            "keeps_drawn_tokens": self._parts.keeps_requests,
        }

    def take_over(self) -> None:
        """Let Headway's sampler draw, until vLLM's does again (``stock``)."""
        self._parts.runner.sampler = self._drawer

    def stock(
        self, prompts: Sequence[Sequence[int]], num_tokens: int
    ) -> tuple[list[list[int]], float]:
        """Return greedy answers under vLLM's own scheduler and sampler, and seconds per pass.

        The seconds are the mean of the passes that decode all of them.
        """
        parts, outputs = self._parts, dict[str, list[int]]()
        parts.runner.sampler = self._sampler
        for prompt in prompts:
            self._num_seen += 1
            outputs[str(self._num_seen)] = []
            parts.add(str(self._num_seen), prompt, num_tokens, (), "")
        ends: list[float] = []
        while parts.has_requests:
            for each in parts.step() or ():
                outputs[each.request_id] += each.new_token_ids
            if all(len(token_ids) > 0 for token_ids in outputs.values()):
                ends.append(time.perf_counter())
        return list(outputs.values()), (ends[-1] - ends[0]) / max(1, len(ends) - 1)

    def kv(self, prompt: Sequence[int]) -> dict[str, object]:
        """Return whether a request goes on as it would have, over KV that has been elsewhere."""
        info = self.backend.info
        count = -(-(len(prompt) + _NUM_AFTER + 1) // info.block_size)
        here, there = list(range(count)), list(range(count, 2 * count))
        self.take_over()
        expected = self._greedy(prompt, 0, here, _NUM_AFTER + 1)
        tokens, start, other = [*prompt, expected[0]], len(prompt), prompt[::-1]
        report: dict[str, object] = {"kv_layout": info.kv_layout}
        if info.kv_layout:
            self._greedy(other, 0, there, 1)
            self._greedy(prompt, 0, here, 1)
            self._move(here, there, start)
            after = self._greedy(tokens, start, there, _NUM_AFTER)
            report["equal_after_move"] = after == expected[1:]
        self._greedy(prompt, 0, here, 1)
        host = tuple(range(count))
        self._run(swapped_out=(Swap(_KEY, tuple(here), start, host),))
        self._greedy(other, 0, here, 1)
        self._greedy(other, 0, there, 1)
        self._run(swapped_in=(Swap(_KEY, tuple(there), start, host),))
        after = self._greedy(tokens, start, there, _NUM_AFTER)
        report["equal_after_swap"] = after == expected[1:]
        self._run(ended=(_KEY,))
        return report

    def _move(self, here: Sequence[int], there: Sequence[int], num_tokens: int) -> None:
        backend = self.backend
        filled = here[: -(-num_tokens // backend.info.block_size)]
        shape, dtype = backend.kv_shape(len(filled)), backend.info.dtype
        writer = backend.kv_writer(IncomingKv(there, shape, dtype, num_tokens))
        for piece in backend.read_kv(filled):
            writer.feed(piece)
        writer.finish()

    def _greedy(
        self, tokens: Sequence[int], start: int, blocks: Sequence[int], count: int
    ) -> list[int]:
        token_ids, params = list(tokens), SamplingParams(temperature=0.0)
        self._run(ended=(_KEY,))
        for _ in range(count):
            new, prompt = tuple(token_ids[start:]), tuple(tokens)
            output = tuple(token_ids[len(tokens) :])
            item = PassItem(_KEY, new, start, blocks, True, params, prompt, output)
            result = self.backend.run(ForwardPass(1, (item,)))
            start = len(token_ids)
            token_ids.append(result.sampled[0].token_id)
        return token_ids[len(tokens) :]

    def _run(
        self,
        swapped_out: tuple[Swap, ...] = (),
        swapped_in: tuple[Swap, ...] = (),
        ended: tuple[StreamKey, ...] = (),
    ) -> None:
        self.backend.run(
            ForwardPass(1, (), swapped_out=swapped_out, swapped_in=swapped_in, ended=ended)
        )
