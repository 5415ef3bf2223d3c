"""The torch backend: computes planned forward passes over the paged KV pool."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

import torch

from headway.cluster import TOKEN_LAYOUT
from headway.engine import EngineInfo, IncomingKv, KvMemory, ModelSize, PassFailure
from headway.errors import Code, HeadwayError
from headway.forward_pass import PENDING, ForwardPass, HiddenStates, PassItem, PassResult, Sampled
from headway.request import SamplingParams, StreamKey, TokenLogprobs
from services.runtime.reasoning import tokenizer_file
from services.worker.engine.grammar import NO_MASKS, Grammars, Masks, PassMasks
from services.worker.engine.kv.host import HostKv, KvSwapper
from services.worker.engine.kv.memory import available_bytes
from services.worker.engine.kv.pool import KvPool, KvStore, KvWriter
from services.worker.engine.layout import LayoutBuilder, PassLayout
from services.worker.engine.model.loaded import LoadedModel
from services.worker.engine.model.loader import load_model
from services.worker.engine.model.tensor_parallel import (
    agree_on_least,
    group_size,
    is_follower,
    join_group,
    leave_group,
    next_order,
    tell_followers,
)
from services.worker.engine.options import EngineOptions, find_device
from services.worker.engine.sampler import Drawn, draw, draw_each, problem_of
from services.worker.engine.scores import PromptScores
from services.worker.engine.transfer import sent

_BESIDE_OTHERS = 0.25
"""Patience of a pass with masks where another tenant's tokens wait beside them."""


class TorchBackend:
    """One replica of a model with its KV pool: a ``headway.engine.Backend``."""

    def __init__(
        self,
        model: LoadedModel,
        pool: KvPool,
        host: HostKv | None = None,
        tokenizer: Path | None = None,
    ) -> None:
        """``tokenizer``: the model's ``tokenizer.json``, for requests with a grammar."""
        self._model = model
        self._grammars = Grammars(tokenizer, model.vocab_size, model.eos_token_ids)
        self._scores = PromptScores(model.lm_head)
        self._pool = pool
        self._host = host
        self._swapper = KvSwapper(pool, host)
        names = [adapter.name for adapter in model.adapters]
        self._layouts = LayoutBuilder(
            pool, model.vocab_size, model.max_model_len, model.decoder.reads, names
        )
        self._device = pool.keys[0].device
        self._drawn: dict[StreamKey, int] = {}  # by the last pass
        self._late: frozenset[StreamKey] = frozenset()  # left out of it
        self._leads = group_size() > 1 and not is_follower()
        self.info = EngineInfo(
            num_blocks=pool.num_blocks,
            num_host_blocks=host.num_blocks if host is not None else 0,
            block_size=pool.block_size,
            kv_bytes_per_token=pool.shape.bytes_per_token,
            max_model_len=model.max_model_len,
            eos_token_ids=model.eos_token_ids,
            dtype=pool.shape.dtype,
            kernels=model.decoder.kernels,
            swaps_beside=self._device.type == "cuda",  # on a CPU it would slow the pass
            kv_layout=TOKEN_LAYOUT if group_size() == 1 else "",
            adapters=model.adapters,
        )

    @classmethod
    def load(cls, model: str, options: EngineOptions) -> Self:
        """Load a checkpoint, a folder or a hub id, and reserve its KV blocks.

        Under torchrun every process loads its share; see ``follow``. Raises HeadwayError where
        the checkpoint, the device or a pool's size cannot be served.
        """
        if options.num_threads:
            torch.set_num_threads(options.num_threads)
        place = join_group(find_device(options.device))
        loaded = load_model(model, place, options)
        free = available_bytes(place, options.gpu_share) if place.type == "cuda" else None
        size = ModelSize(loaded.kv_shape.bytes_per_token, loaded.max_model_len, free)
        num_blocks, num_host_blocks = (
            agree_on_least(chosen(size) if callable(chosen) else chosen, place)
            for chosen in (options.num_blocks, options.num_host_blocks)
        )
        pool = KvPool(loaded.kv_shape, num_blocks, options.block_size, place)
        host = HostKv(pool, num_host_blocks) if num_host_blocks else None
        return cls(loaded, pool, host, tokenizer_file(model))

    # --- forward passes ---------------------------------------------------------------

    def run(self, forward_pass: ForwardPass) -> PassResult:
        """See ``Backend.run``."""
        if self._leads:
            tell_followers(forward_pass)
        return self._run(forward_pass)

    def _run(self, forward_pass: ForwardPass) -> PassResult:
        started_at = time.perf_counter()
        sampled: tuple[Sampled, ...] = ()
        hidden, ready_masks, waited, score_time = None, NO_MASKS, 0.0, 0.0
        drawn, self._drawn = self._drawn, {}
        before, self._late = self._late, frozenset()
        self._scores.forget(forward_pass.ended)
        self._grammars.forget(forward_pass.ended)
        with self._swapper.around(forward_pass) as swapping:
            if forward_pass.items:
                with torch.inference_mode():
                    items = with_drawn(forward_pass.items, drawn, before)
                    layout = self._layouts.build(items)
                    masks = self._grammars.begin(items)
                    states = self._model.compute(layout)
                    score_time = self._score(states, layout, items)
                    if masks is not None:
                        ready_masks, waited = _ready(masks, started_at, items)
                        self._late = masks.late(ready_masks)
                    sampled = self._draw(states, layout, items, ready_masks)
                    hidden = of_hidden(hidden_rows(states, layout, forward_pass), forward_pass)
        self._drawn = {each.key: each.token_id for each in sampled}
        pass_time = time.perf_counter() - started_at - waited
        late = tuple(self._late)
        return PassResult(
            forward_pass.pass_id,
            pass_time,
            sampled,
            hidden,
            swapping.seconds,
            late=late,
            score_time=score_time,
        )

    def _score(self, states: torch.Tensor, layout: PassLayout, items: Sequence[PassItem]) -> float:
        """Compute the log probabilities of prompts, where asked for; return the seconds."""
        if not any(item.num_scored for item in items):
            return 0.0
        if self._device.type == "cuda":  # else the time would be that of the model, too
            torch.cuda.synchronize(self._device)
        began_at = time.perf_counter()
        self._scores.gather(states, layout, items)
        return time.perf_counter() - began_at

    def _draw(
        self,
        states: torch.Tensor,
        layout: PassLayout,
        items: Sequence[PassItem],
        masks: Masks,
    ) -> tuple[Sampled, ...]:
        """Draw a token for each item that asks, from ``states`` (rows, hidden size)."""
        if not layout.sampling_items:
            if self._device.type == "cuda":  # drawing would have waited for the device
                torch.cuda.synchronize(self._device)
            return ()
        logits, chosen = self._logits(states, layout, items)
        how = draw_each if self._model.decoder.is_deterministic else draw
        drawn = how(logits, chosen, self.info.eos_token_ids, self._model.decoder.greatest, masks)
        return self._sampled(drawn, layout, items, masks, self._late)

    def _logits(
        self, states: torch.Tensor, layout: PassLayout, items: Sequence[PassItem]
    ) -> tuple[torch.Tensor, list[PassItem]]:
        """Return the logits of the rows that draw (rows, vocabulary), and their items."""
        rows = layout.sampling_rows
        logits = self._model.lm_head(states if rows is None else states.index_select(0, rows))
        return logits, [items[n] for n in layout.sampling_items]

    def _sampled(
        self,
        drawn: Sequence[Drawn],
        layout: PassLayout,
        items: Sequence[PassItem],
        masks: Masks,
        late: Collection[StreamKey] = (),
    ) -> tuple[Sampled, ...]:
        """Return what was drawn by the order of the plan's items, without the ``late`` ones."""
        by_item = sorted(zip(layout.sampling_items, drawn, strict=True), key=lambda pair: pair[0])
        return tuple(
            Sampled(items[n].key, token, self._with_prompt(items[n], logprobs))
            if token >= 0
            else none_drawn(items[n].key, token, masks)
            for n, (token, logprobs) in by_item
            if items[n].key not in late
        )

    def _with_prompt(self, item: PassItem, logprobs: TokenLogprobs | None) -> TokenLogprobs | None:
        """Return a first token's log probabilities with those of its prompt, if asked for."""
        if item.sampling.num_prompt_logprobs is None or item.num_output_tokens:
            return logprobs
        return replace(logprobs or TokenLogprobs(0.0), prompt=self._scores.take(item))

    def follow(self) -> None:
        """Run the passes of the process that leads this group, until that one is closed."""
        self._prepare()
        while (forward_pass := next_order()) is not None:
            with suppress(PassFailure):  # the leader fails alike and reports it
                self._run(forward_pass)
        leave_group()

    def close(self) -> None:
        """See ``Backend.close``; the group's other processes end, too."""
        self._pool.writable.set()
        self._grammars.close()
        if self._leads:
            tell_followers(None)
            leave_group()

    def warm_up(self) -> None:
        """Run a prompt and a decoding step over the first blocks, overwriting them."""
        self._prepare()
        num_tokens = min(2 * self.info.block_size, self.info.num_blocks * self.info.block_size)
        count = min(num_tokens, self.info.max_model_len) - 1
        blocks = tuple(range(-(-(count + 1) // self.info.block_size)))
        key, params = StreamKey("warm-up", 0), SamplingParams(temperature=1.0)
        for token_ids, start in (((0,) * count, 0), ((0,), count)):
            if token_ids:
                item = PassItem(key, token_ids, start, blocks, True, params, (0,) * count, ())
                self.run(ForwardPass(0, (item,)))

    def _prepare(self) -> None:
        with torch.inference_mode():
            self._model.decoder.prepare(self._pool)

    # --- KV ---------------------------------------------------------------------------

    def expect(self, forward_pass: ForwardPass) -> None:
        """See ``Backend.expect``."""
        if forward_pass.swapped_out:
            self._pool.writable.clear()

    def kv_shape(self, num_blocks: int) -> tuple[int, int, int, int, int]:
        """Return (layers, 2, tokens, KV heads, head size) of ``num_blocks`` blocks."""
        return self._pool.wire_shape(num_blocks)

    def read_kv(self, block_ids: Sequence[int], *, from_host: bool = False) -> Iterator[memoryview]:
        """See ``Backend.read_kv``."""
        return self._store(from_host).read(block_ids)

    def kv_writer(self, kv: IncomingKv) -> KvWriter:
        """See ``Backend.kv_writer``."""
        return KvWriter(self._store(kv.to_host), kv)

    def kv_memory(self, *, is_host: bool) -> KvMemory | None:
        """See ``KvInMemory``."""
        store = self._host if is_host else self._pool
        return None if store is None else store.memory()

    def await_writable(self) -> None:
        """See ``KvInMemory``."""
        self._pool.writable.wait()

    def _store(self, is_host: bool) -> KvStore:
        if not self.info.kv_layout:
            message = "a worker of several processes cannot send or receive KV"
            raise HeadwayError(Code.FAILED_PRECONDITION, message)
        if not is_host:
            return self._pool
        assert self._host is not None, "the core knows how much host memory there is"
        return self._host


def none_drawn(key: StreamKey, token: int, masks: Masks) -> Sampled:
    """Return the end of a request for which no token can be drawn.

    A pass that is already planned behind this one computes any token for it.
    """
    return Sampled(key, 0, problem=problem_of(token, masks.get(key)))


def _ready(masks: PassMasks, started_at: float, items: Sequence[PassItem]) -> tuple[Masks, float]:
    """Return the masks that are ready, and the seconds that were spent waiting for them.

    Who has none after the pass's patience is left out. The processes of a group wait for all, as
    they have to draw alike.
    """
    computed_at = time.perf_counter()
    longest = computed_at - started_at
    ready_masks = masks.result(patience(items) * longest if group_size() == 1 else None)
    return ready_masks, time.perf_counter() - computed_at


def patience(items: Sequence[PassItem]) -> float:
    """Return how long a pass waits for masks, as a share of the time for which it has computed.

    Beside another tenant's tokens a request had better be left out than hold them up.
    """
    return 1.0 if len({item.tenant for item in items}) == 1 else _BESIDE_OTHERS


def with_drawn(
    items: Sequence[PassItem],
    drawn: Mapping[StreamKey, int],
    late: Collection[StreamKey] = (),
) -> Sequence[PassItem]:
    """Replace pending tokens by what the pass before has ``drawn``.

    A request that was left out of it as ``late`` computes any token, and draws none. Another whose
    token was not drawn stays as it is; the layout refuses it.
    """
    if not any(item.token_ids[0] == PENDING for item in items if item.token_ids):
        return items
    return [
        item._replace(token_ids=(0,), sample=False)
        if item.key in late and item.token_ids[0] == PENDING
        else _filled_in(item, drawn)
        for item in items
    ]


def _filled_in(item: PassItem, drawn: Mapping[StreamKey, int]) -> PassItem:
    if item.token_ids[0] != PENDING or item.key not in drawn:
        return item
    token = drawn[item.key]
    output = item.output_token_ids
    if item.sampling.reads_output:  # no pass reads them
        output = (*output[: item.num_output_tokens - 1], token)
    return item._replace(token_ids=(token,), output_token_ids=output)


def hidden_rows(
    states: torch.Tensor, layout: PassLayout, forward_pass: ForwardPass
) -> torch.Tensor | None:
    """Return the states that the plan asks for as float16; None if it asks for none."""
    if not forward_pass.hidden:
        return None
    rows = sent(torch.from_numpy(layout.last_rows[list(forward_pass.hidden)]), states.device)
    most = torch.finfo(torch.float16).max
    return states.index_select(0, rows).clamp(-most, most).to(torch.float16)


def of_hidden(rows: torch.Tensor | None, forward_pass: ForwardPass) -> HiddenStates | None:
    """Wait for the states that the plan asks for; None if it asks for none."""
    if rows is None:
        return None
    keys = tuple(forward_pass.items[n].key for n in forward_pass.hidden)
    return HiddenStates(keys, rows.cpu().numpy())
