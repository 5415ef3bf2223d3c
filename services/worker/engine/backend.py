"""The worker's backend: executes planned forward passes over the paged KV pool."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from headway.errors import Code, HeadwayError
from headway.forward_pass import PENDING, ForwardPass, HiddenStates, PassItem, PassResult, Sampled
from headway.request import SamplingParams, StreamKey
from services.worker.engine.kv.host import HostKv, KvSwapper
from services.worker.engine.kv.memory import available_bytes
from services.worker.engine.kv.pool import Buffer, KvPool, KvStore, KvWriter
from services.worker.engine.layout import LayoutBuilder, PassFailure, PassLayout
from services.worker.engine.model.decoders import Kernels
from services.worker.engine.model.loader import LoadedModel, load_model
from services.worker.engine.model.tensor_parallel import (
    agree_on_least,
    group_size,
    is_follower,
    join_group,
    leave_group,
    next_order,
    tell_followers,
)
from services.worker.engine.sampler import Drawn, draw, is_plain

__all__ = ["ModelSize", "PassFailure", "TorchBackend"]


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What the size of a KV pool is chosen from.

    ``free_bytes`` is the device's free memory with the weights loaded; None on a CPU.
    """

    kv_bytes_per_token: int
    max_model_len: int
    free_bytes: int | None


class TorchBackend:
    """One replica of a model with its KV pool.

    ``run`` belongs to one thread. KV may be read and written from other threads meanwhile, on
    blocks that the pass does not touch.
    """

    def __init__(self, model: LoadedModel, pool: KvPool, host: HostKv | None = None) -> None:
        self._model = model
        self._pool = pool
        self._host = host
        self._swapper = KvSwapper(pool, host)
        self._layouts = LayoutBuilder(
            pool, model.vocab_size, model.max_model_len, model.decoder.reads
        )
        self._device = pool.keys[0].device
        self._drawn: dict[StreamKey, int] = {}  # by the last pass
        self.holds_whole_kv = group_size() == 1
        self.swaps_beside = self._device.type == "cuda"  # on a CPU a pass would share its cores
        self._leads = group_size() > 1 and not is_follower()
        self.model_max_len = model.max_model_len
        self.vocab_size = model.vocab_size
        self.eos_token_ids = model.eos_token_ids
        self.num_blocks = pool.num_blocks
        self.num_host_blocks = host.num_blocks if host is not None else 0
        self.block_size = pool.block_size
        self.num_layers = pool.shape.num_layers
        self.num_kv_heads = pool.shape.num_kv_heads
        self.head_dim = pool.shape.head_dim
        self.dtype_name = pool.shape.dtype
        self.kernels = model.decoder.kernels
        self.kv_bytes_per_token = pool.shape.bytes_per_token

    @classmethod
    def load(
        cls,
        model: str,
        *,
        num_blocks: int | Callable[[ModelSize], int],
        device: str = "cpu",
        dtype: str = "auto",
        block_size: int = 16,
        num_threads: int | None = None,
        num_host_blocks: int | Callable[[ModelSize], int] = 0,
        kernels: Kernels = "auto",
        quantization: str = "",
        max_model_len: int | None = None,
        screens: bool = True,
    ) -> TorchBackend:
        """Load a checkpoint and take ``num_blocks`` KV blocks, for all DP units together.

        ``num_host_blocks`` more are in host memory, for KV that waits there. ``kernels``: see
        ``decoder_class``. ``quantization`` is a scheme's name. ``max_model_len`` is what a worker
        is asked to serve, 0 for the model's own, refused where that cannot be. ``screens``: whether
        greedy draws may go by codes of the head in 8 bits. Raises HeadwayError where the
        checkpoint, the device or a pool's size cannot be served. Under torchrun every process
        loads its share; see ``follow``.
        """
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        place = join_group(_device(device))
        loaded = load_model(model, place, dtype, kernels, quantization, max_model_len, screens)
        free = available_bytes(place) if place.type == "cuda" else None
        size = ModelSize(loaded.kv_shape.bytes_per_token, loaded.max_model_len, free)
        num_blocks = num_blocks(size) if callable(num_blocks) else num_blocks
        num_host_blocks = num_host_blocks(size) if callable(num_host_blocks) else num_host_blocks
        num_blocks = agree_on_least(num_blocks, place)
        num_host_blocks = agree_on_least(num_host_blocks, place)
        pool = KvPool(loaded.kv_shape, num_blocks, block_size, place)
        return cls(loaded, pool, HostKv(pool, num_host_blocks) if num_host_blocks else None)

    # --- forward passes ---------------------------------------------------------------

    def run(self, forward_pass: ForwardPass) -> PassResult:
        """Execute a plan and draw where it says so.

        What is ``PENDING`` is what the pass before drew. Raises PassFailure with the keys of the
        requests at fault: an inconsistent plan (nothing was computed), the pass before among its
        reasons, or logits that are not finite. The pass may then be run without them.
        """
        if self._leads:
            tell_followers(forward_pass)
        return self._run(forward_pass)

    def _run(self, forward_pass: ForwardPass) -> PassResult:
        started_at = time.perf_counter()
        sampled: tuple[Sampled, ...] = ()
        hidden = None
        drawn, self._drawn = self._drawn, {}
        with self._swapper.around(forward_pass) as swapping:
            if forward_pass.items:
                with torch.inference_mode():
                    items = filled_in(forward_pass.items, drawn)
                    layout = self._layouts.build(items)
                    states = self._model.decoder(layout.token_ids, layout.positions, layout.batch)
                    sampled = self._draw(states, layout, items)
                    hidden = _take_hidden(states, layout, forward_pass)
        self._drawn = {each.key: each.token_id for each in sampled}
        pass_time = time.perf_counter() - started_at
        return PassResult(forward_pass.pass_id, pass_time, sampled, hidden, swapping.seconds)

    def _draw(
        self, states: torch.Tensor, layout: PassLayout, items: Sequence[PassItem]
    ) -> tuple[Sampled, ...]:
        """Tokens of the items that ask, from ``states`` (rows, hidden size)."""
        if not layout.sampling_items:
            if self._device.type == "cuda":  # what draws would have waited for
                torch.cuda.synchronize(self._device)
            return ()
        rows = layout.sampling_rows
        drawn_from = states if rows is None else states.index_select(0, rows)
        chosen = [items[n] for n in layout.sampling_items]
        drawn = self._draw_from(drawn_from, chosen)
        bad = [item.key for item, (token, _) in zip(chosen, drawn, strict=True) if token < 0]
        if bad:
            names = ", ".join(f"{key.gateway_id}/{key.stream_id}" for key in bad)
            raise PassFailure(bad, f"the model's logits are not finite for {names}")
        by_item = sorted(zip(layout.sampling_items, drawn, strict=True), key=lambda pair: pair[0])
        return tuple(Sampled(items[n].key, token, logprobs) for n, (token, logprobs) in by_item)

    def _draw_from(self, states: torch.Tensor, items: Sequence[PassItem]) -> Sequence[Drawn]:
        screen = self._model.screen
        if screen is not None and all(is_plain(item) for item in items):
            tokens = screen.greatest(states)
            if tokens is not None:
                return [(token, None) for token in tokens.tolist()]
        logits = self._model.lm_head(states)
        return draw(logits, items, self.eos_token_ids, self._model.decoder.greatest)

    def follow(self) -> None:
        """Run the passes of the process that leads this group, until that one is closed."""
        self._prepare()
        while (forward_pass := next_order()) is not None:
            with suppress(PassFailure):  # it has the same, and says so
                self._run(forward_pass)
        leave_group()

    def close(self) -> None:
        """Let those go that follow."""
        if self._leads:
            tell_followers(None)
            leave_group()

    def warm_up(self) -> None:
        """Run a prompt and a decoding step over the first blocks; what they held is lost."""
        self._prepare()
        count = min(2 * self.block_size, self.num_blocks * self.block_size, self.model_max_len) - 1
        blocks = tuple(range(-(-(count + 1) // self.block_size)))
        key, params = StreamKey("warm-up", 0), SamplingParams(temperature=1.0)
        for token_ids, start in (((0,) * count, 0), ((0,), count)):
            if token_ids:
                item = PassItem(key, token_ids, start, blocks, True, params, (0,) * count, ())
                self.run(ForwardPass(0, (item,)))

    def _prepare(self) -> None:
        with torch.inference_mode():
            self._model.decoder.prepare(self._pool)

    # --- KV ---------------------------------------------------------------------------

    def kv_shape(self, num_blocks: int) -> tuple[int, int, int, int, int]:
        """(layers, 2, tokens, KV heads, head size) of so many blocks."""
        return self._pool.wire_shape(num_blocks)

    def kv_num_bytes(self, num_blocks: int) -> int:
        """Bytes of so many blocks."""
        return num_blocks * self.block_size * self.kv_bytes_per_token

    def hold_kv_writes(self, forward_pass: ForwardPass) -> None:
        """Before a pass is run: what is written from elsewhere waits until it has saved its own."""
        if forward_pass.swapped_out:
            self._pool.writable.clear()

    def release_kv_writes(self) -> None:
        """No pass will come: nobody waits for one."""
        self._pool.writable.set()

    def read_kv_chunks(
        self, block_ids: Sequence[int], *, from_host: bool = False
    ) -> Iterator[memoryview]:
        """The blocks' KV in C order, in pieces of at most 1 MiB; each is read when asked for."""
        return self._store(from_host).read(block_ids)

    def read_kv(self, block_ids: Sequence[int]) -> bytes:
        """The blocks' KV at once."""
        return b"".join(self.read_kv_chunks(block_ids))

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
        """Takes another pool's KV of tokens ``first_token … num_tokens - 1``, piece by piece."""
        return KvWriter(self._store(to_host), block_ids, shape, dtype, num_tokens, first_token)

    def _store(self, is_host: bool) -> KvStore:
        if not self.holds_whole_kv:
            message = "a worker of several processes holds no whole KV: it sends and takes none"
            raise HeadwayError(Code.FAILED_PRECONDITION, message)
        if not is_host:
            return self._pool
        assert self._host is not None, "the core knows how much host memory there is"
        return self._host

    def write_kv(
        self, block_ids: Sequence[int], shape: Sequence[int], dtype: str, data: Buffer
    ) -> None:
        """The inverse of ``read_kv``; the blocks hold all of ``shape``'s tokens."""
        writer = self.kv_writer(block_ids, shape, dtype, shape[2])
        writer.feed(data)
        writer.finish()


def filled_in(items: Sequence[PassItem], drawn: Mapping[StreamKey, int]) -> Sequence[PassItem]:
    """The items with what the pass before has ``drawn`` where that was pending.

    An item whose token was not drawn stays as it is, and will be refused.
    """
    if not any(item.token_ids[0] == PENDING for item in items if item.token_ids):
        return items
    return [_filled_in(item, drawn) for item in items]


def _filled_in(item: PassItem, drawn: Mapping[StreamKey, int]) -> PassItem:
    if item.token_ids[0] != PENDING or item.key not in drawn:
        return item
    token = drawn[item.key]
    output = item.output_token_ids
    if item.sampling.has_penalties:  # nothing else reads them
        output = (*output[: item.num_output_tokens - 1], token)
    return item._replace(token_ids=(token,), output_token_ids=output)


def _take_hidden(
    states: torch.Tensor, layout: PassLayout, forward_pass: ForwardPass
) -> HiddenStates | None:
    """The states of the items that the plan names, as the wire has them."""
    if not forward_pass.hidden:
        return None
    rows = torch.from_numpy(layout.last_rows[list(forward_pass.hidden)]).to(states.device)
    most = torch.finfo(torch.float16).max
    values = states.index_select(0, rows).clamp(-most, most).to(torch.float16).cpu().numpy()
    keys = tuple(forward_pass.items[n].key for n in forward_pass.hidden)
    return HiddenStates(keys, values)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise _no_device(name, "cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise _no_device(name, "cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise _no_device(name, f"one of the {torch.cuda.device_count()} GPUs of this machine")
    return device


def _no_device(name: str, limit: str) -> HeadwayError:
    message = f"device is {name!r}; it must be {limit}"
    return HeadwayError(Code.INVALID_ARGUMENT, message, param="device")
