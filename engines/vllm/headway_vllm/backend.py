"""Headway's passes, computed by vLLM: its models and kernels, Headway's plans and draws."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Thread, current_thread

import torch

from headway.blocks import blocks_for
from headway.engine import EngineInfo, IncomingKv, PassFailure
from headway.errors import Code
from headway.forward_pass import PENDING, ForwardPass, PassItem, PassResult
from headway.request import SamplingParams, StreamKey
from headway_vllm.draws import begin_rows, refusal
from headway_vllm.engine_parts import EngineParts
from headway_vllm.kv import VllmKvStore
from headway_vllm.plans import PassTranslator
from headway_vllm.shared_kv import KvOfRank, SharedKv
from headway_vllm.shim import eos_token_ids, settle_threads
from headway_vllm.started_pass import StartedPass
from services.worker.engine.backend import with_drawn
from services.worker.engine.grammar import NO_MASKS, Grammars
from services.worker.engine.kv.pool import KvShape, KvWriter


class VllmBackend:
    """A ``headway.engine.Backend`` over a vLLM engine in this process."""

    def __init__(
        self, parts: EngineParts, num_blocks: int, num_host_blocks: int, tokenizer: Path | None
    ) -> None:
        """``tokenizer``: the model's ``tokenizer.json``, for requests with a grammar."""
        self._parts = parts
        model, spec = parts.config.model_config, parts.kv_spec
        dtype = str(model.dtype).removeprefix("torch.")
        share = KvShape(len(parts.layer_names), spec.num_kv_heads, spec.head_size, dtype)
        sizes = (share, spec.block_size, num_blocks, num_host_blocks)
        own = KvOfRank(parts.attention, parts.kv_caches, *sizes)
        kv = own if parts.ranks is None else SharedKv(own, parts.ranks)
        self._host, self._store, self._host_store = kv.host, kv.store, kv.host_store
        self.info = EngineInfo(
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            block_size=spec.block_size,
            kv_bytes_per_token=kv.store.shape.bytes_per_token,
            max_model_len=model.max_model_len,
            eos_token_ids=eos_token_ids(parts.config),
            dtype=dtype,
            max_running=parts.config.scheduler_config.max_num_seqs,
            kernels="vllm",
            kv_layout=VllmKvStore.layout if own.is_known else "",
        )
        self._vocab_size = int(model.get_vocab_size())
        self._grammars = Grammars(tokenizer, self._vocab_size, self.info.eos_token_ids)
        self._plans = PassTranslator(keeps_requests=parts.keeps_requests, most=parts.most_requests)
        self._items: Mapping[str, PassItem] = {}
        self._thread: Thread | None = None
        self._last_pass = StartedPass(0, 0.0)  # the last one with items
        self._ended_at = 0.0
        self._parts.draw_with(self._draw)

    # --- forward passes ---------------------------------------------------------------

    def expect(self, forward_pass: ForwardPass) -> None:
        """See ``Backend.expect``."""
        if forward_pass.swapped_out:
            self._store.writable.clear()

    def run(self, forward_pass: ForwardPass) -> PassResult:
        """See ``Backend.run``."""
        return self.end(self.begin(forward_pass))

    def begin(self, forward_pass: ForwardPass) -> StartedPass:
        """Queue a pass on vLLM's device; all passes from one thread."""
        if self._thread is not current_thread():  # numbers of threads are used again
            self._thread = current_thread()
            settle_threads()
        current = StartedPass(forward_pass.pass_id, time.perf_counter())
        self._plans.forget(forward_pass.ended)
        current.swap_time = self._swap(forward_pass)
        if not forward_pass.items:
            return current
        before, self._last_pass = self._last_pass, current
        current.items = self._filled_in(forward_pass.items, before, current)
        for item in current.items:
            self._check(item, current.least_token)
        try:
            with torch.inference_mode():
                self._compute(current, forward_pass.hidden)
        except BaseException:
            self._plans.forget_all()
            raise
        return current

    def end(self, current: StartedPass) -> PassResult:
        """Wait for the tokens of a pass, in the order in which passes began."""
        sampled, hidden = current.sampled(), current.hidden_states()
        ended_at = time.perf_counter()
        since = max(current.began_at, self._ended_at)
        self._ended_at = ended_at
        return PassResult(current.pass_id, ended_at - since, sampled, hidden, current.swap_time)

    def _filled_in(
        self, items: Sequence[PassItem], before: StartedPass, current: StartedPass
    ) -> Sequence[PassItem]:
        """Replace pending tokens by what the pass before has drawn."""
        if not any(item.token_ids[0] == PENDING for item in items if item.token_ids):
            return items
        return with_drawn(items, before.tokens())

    def _swap(self, forward_pass: ForwardPass) -> float:
        """Copy the pass's swaps; return the seconds that they took."""
        swaps = (*forward_pass.swapped_out, *forward_pass.swapped_in)
        if not swaps and not forward_pass.saved:
            return 0.0
        started_at = time.perf_counter()
        self._plans.forget(swap.key for swap in swaps)
        self._host.swap(forward_pass)
        self._store.writable.set()
        return time.perf_counter() - started_at

    def _compute(self, current: StartedPass, wanted: Sequence[int]) -> None:
        plan, self._items = self._plans.translate(current.items)
        masks = self._grammars.begin(current.items)
        current.masks = NO_MASKS if masks is None else masks.result()
        if self._parts.run(plan) is None:
            if wanted:
                current.keep_hidden(
                    self._parts, self._items, [current.items[n].key for n in wanted]
                )
            self._parts.sample()

    def _draw(self, logits: torch.Tensor) -> torch.Tensor:
        """Return a token for each row; rows that draw none get any."""
        items, current = [self._items[name] for name in self._parts.request_ids], self._last_pass
        sampling = [item if item.sample else None for item in items]
        draws = begin_rows(logits, sampling, self.info.eos_token_ids, current.masks)
        current.drew([item.key for item in items], draws)
        return draws.tokens

    def _check(self, item: PassItem, least: int) -> None:
        """Refuse an item that contradicts itself, before anything is computed.

        ``least`` is PENDING where the device knows the tokens that are missing, else 0. An item of
        one token has one new block at most: the others were looked at before.
        """
        stop, size = item.start + len(item.token_ids), self.info.block_size
        blocks = item.block_table if len(item.token_ids) > 1 else item.block_table[-1:]
        problem = ""
        if stop > self.info.max_model_len:
            problem = f"it reaches {stop} tokens: over the limit of {self.info.max_model_len}"
        elif blocks_for(stop, size) > len(item.block_table):
            problem = f"its block table holds {len(item.block_table) * size} tokens of {stop}"
        elif not 0 <= min(blocks) <= max(blocks) < self.info.num_blocks:
            problem = f"its block table names blocks beyond {self.info.num_blocks - 1}"
        elif not least <= min(item.token_ids) <= max(item.token_ids) < self._vocab_size:
            wrong = next(t for t in item.token_ids if not 0 <= t < self._vocab_size)
            problem = f"{wrong} is not a token id"
        if problem:
            name = f"request {item.key.gateway_id}/{item.key.stream_id}"
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

    def kv_writer(self, kv: IncomingKv) -> KvWriter:
        """See ``Backend.kv_writer``."""
        return KvWriter(self._host_store if kv.to_host else self._store, kv)

    def close(self) -> None:
        """See ``Backend.close``."""
        self._store.writable.set()
        self._grammars.close()
        self._parts.close()
