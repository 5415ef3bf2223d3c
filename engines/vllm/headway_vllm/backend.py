"""Headway's passes, computed by vLLM: its models and kernels, Headway's plans and draws."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Thread, current_thread

import numpy as np
import torch

from headway.blocks import blocks_for
from headway.engine import EngineInfo, PassFailure
from headway.errors import Code
from headway.forward_pass import ForwardPass, HiddenStates, PassItem, PassResult, Sampled
from headway.request import SamplingParams, StreamKey
from headway_vllm.draws import draw_rows, refusal
from headway_vllm.kv import HostBlocks, VllmKvStore, planes_of
from headway_vllm.plans import NULL_BLOCKS, PassTranslator
from headway_vllm.shim import EngineParts, eos_token_ids, settle_threads
from services.worker.engine.backend import none_drawn, with_drawn
from services.worker.engine.grammar import NO_MASKS, Grammars
from services.worker.engine.kv.pool import KvShape, KvWriter
from services.worker.engine.sampler import Drawn


class VllmBackend:
    """A ``headway.engine.Backend`` over a vLLM engine in this process."""

    def __init__(
        self, parts: EngineParts, num_blocks: int, num_host_blocks: int, tokenizer: Path | None
    ) -> None:
        """``tokenizer``: the model's ``tokenizer.json``, for requests with a grammar."""
        self._parts = parts
        model, spec = parts.config.model_config, parts.kv_spec
        dtype = str(model.dtype).removeprefix("torch.")
        shape = KvShape(len(parts.layer_names), spec.num_kv_heads, spec.head_size, dtype)
        size, caches = spec.block_size, parts.kv_caches
        planes = planes_of(parts.attention, shape, size, caches)
        self.info = EngineInfo(
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            block_size=spec.block_size,
            kv_bytes_per_token=shape.bytes_per_token,
            max_model_len=model.max_model_len,
            eos_token_ids=eos_token_ids(parts.config),
            dtype=dtype,
            kernels="vllm",
            kv_layout=VllmKvStore.layout if planes is not None else "",
        )
        self._vocab_size = int(model.get_vocab_size())
        self._host = HostBlocks(caches, num_host_blocks)
        hosted = planes_of(parts.attention, shape, size, self._host.blocks)
        self._store = VllmKvStore(shape, num_blocks, size, planes or (), NULL_BLOCKS)
        self._host_store = VllmKvStore(shape, num_host_blocks, size, hosted or ())
        self._grammars = Grammars(tokenizer, self._vocab_size, self.info.eos_token_ids)
        self._plans = PassTranslator(keeps_requests=parts.keeps_requests, most=parts.most_requests)
        self._items: Mapping[str, PassItem] = {}
        self._masks = NO_MASKS
        self._thread: Thread | None = None
        self._drawn: dict[StreamKey, Drawn] = {}  # by the last pass
        self._parts.draw_with(self._draw)

    # --- forward passes ---------------------------------------------------------------

    def expect(self, forward_pass: ForwardPass) -> None:
        """See ``Backend.expect``."""
        if forward_pass.swapped_out:
            self._store.writable.clear()

    def run(self, forward_pass: ForwardPass) -> PassResult:
        """See ``Backend.run``."""
        if self._thread is not current_thread():  # numbers of threads are used again
            self._thread = current_thread()
            settle_threads()
        started_at = time.perf_counter()
        self._plans.forget(forward_pass.ended)
        swap_time = self._swap(forward_pass)
        sampled: tuple[Sampled, ...] = ()
        hidden = None
        if forward_pass.items:
            before, self._drawn = self._drawn, {}
            tokens = {key: max(0, token) for key, (token, _) in before.items()}
            items = with_drawn(forward_pass.items, tokens)
            for item in items:
                self._check(item)
            try:
                with torch.inference_mode():
                    hidden = self._compute(items, forward_pass.hidden)
            except BaseException:
                self._plans.forget_all()
                raise
            sampled = self._sampled(items)
        pass_time = time.perf_counter() - started_at
        return PassResult(forward_pass.pass_id, pass_time, sampled, hidden, swap_time)

    def _swap(self, forward_pass: ForwardPass) -> float:
        """Copy the pass's swaps; return the seconds that they took."""
        swaps = (*forward_pass.swapped_out, *forward_pass.swapped_in)
        if not swaps:
            return 0.0
        started_at = time.perf_counter()
        self._plans.forget(swap.key for swap in swaps)
        self._host.swap(forward_pass)
        self._store.writable.set()
        return time.perf_counter() - started_at

    def _compute(self, items: Sequence[PassItem], wanted: Sequence[int]) -> HiddenStates | None:
        plan, self._items = self._plans.translate(items)
        masks = self._grammars.begin(items)
        self._masks = NO_MASKS if masks is None else masks.result()
        hidden = None
        if self._parts.run(plan) is None:
            if wanted:
                hidden = self._hidden([items[place].key for place in wanted])
            self._parts.sample()
        return hidden

    def _draw(self, logits: torch.Tensor) -> torch.Tensor:
        """Return a token for each row; rows that draw none get any."""
        items = [self._items[name] for name in self._parts.request_ids]
        sampling = [item if item.sample else None for item in items]
        tokens, drawn = draw_rows(logits, sampling, self.info.eos_token_ids, self._masks)
        self._drawn |= {items[row].key: found for row, found in drawn.items()}
        return tokens

    def _sampled(self, items: Sequence[PassItem]) -> tuple[Sampled, ...]:
        drawn = [(item.key, *self._drawn[item.key]) for item in items if item.sample]
        return tuple(
            Sampled(key, token, logprobs) if token >= 0 else none_drawn(key, token, self._masks)
            for key, token, logprobs in drawn
        )

    def _hidden(self, keys: Sequence[StreamKey]) -> HiddenStates:
        rows = {self._items[name].key: n for n, name in enumerate(self._parts.request_ids)}
        states = self._parts.last_states[[rows[key] for key in keys]].float()
        most = torch.finfo(torch.float16).max
        values = states.clamp(-most, most).to(torch.float16).cpu().numpy()
        return HiddenStates(tuple(keys), np.ascontiguousarray(values))

    def _check(self, item: PassItem) -> None:
        """Refuse an item that contradicts itself, before anything is computed."""
        stop, size = item.start + len(item.token_ids), self.info.block_size
        name = f"request {item.key.gateway_id}/{item.key.stream_id}"
        problem = ""
        if stop > self.info.max_model_len:
            problem = f"it reaches {stop} tokens: over the limit of {self.info.max_model_len}"
        elif blocks_for(stop, size) > len(item.block_table):
            problem = f"its block table holds {len(item.block_table) * size} tokens of {stop}"
        elif not 0 <= min(item.block_table) <= max(item.block_table) < self.info.num_blocks:
            problem = f"its block table names blocks beyond {self.info.num_blocks - 1}"
        elif not 0 <= min(item.token_ids) <= max(item.token_ids) < self._vocab_size:
            wrong = next(t for t in item.token_ids if not 0 <= t < self._vocab_size)
            problem = f"{wrong} is not a token id"
        if problem:
            raise PassFailure([item.key], f"{name}: {problem}")
        refused = refusal(item.sampling)
        if refused:
            raise PassFailure([item.key], refused, Code.INVALID_ARGUMENT)

    def warm_up(self) -> None:
        """Run a prompt and a decoding step, which compile what vLLM compiles late."""
        size, key = self.info.block_size, StreamKey("warm-up", 0)
        params = SamplingParams(temperature=1.0, num_logprobs=1)
        count = min(size * self.info.num_blocks, size + 1, self.info.max_model_len) - 1
        blocks = tuple(range(blocks_for(count + 1, size)))
        for token_ids, start in (((0,) * count, 0), ((0,), count)):
            output = (0,) if start else ()
            item = PassItem(key, token_ids, start, blocks, True, params, (0,) * count, output)
            self.run(ForwardPass(0, (item,)))
        self._plans.forget([key])

    # --- KV ---------------------------------------------------------------------------

    def kv_shape(self, num_blocks: int) -> tuple[int, ...]:
        """See ``Backend.kv_shape``."""
        return self._store.wire_shape(num_blocks)

    def read_kv(self, block_ids: Sequence[int], *, from_host: bool = False) -> Iterator[memoryview]:
        """See ``Backend.read_kv``."""
        return (self._host_store if from_host else self._store).read(block_ids)

    def kv_writer(
        self,
        block_ids: Sequence[int],
        shape: Sequence[int],
        dtype: str,
        num_tokens: int,
        *,
        first_token: int = 0,
        to_host: bool = False,
    ) -> KvWriter:
        """See ``Backend.kv_writer``."""
        store = self._host_store if to_host else self._store
        return KvWriter(store, block_ids, shape, dtype, num_tokens, first_token)

    def close(self) -> None:
        """See ``Backend.close``."""
        self._store.writable.set()
        self._grammars.close()
        self._parts.close()
