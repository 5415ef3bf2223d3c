"""Headway's own engine: a random model in memory, passes through the worker's backend."""

from __future__ import annotations

import random
from typing import Any

import torch

from bench.card.cases import BLOCK_SIZE, Case, Shape
from bench.card.device import seconds, wait
from headway.forward_pass import ForwardPass, PassItem
from headway.request import SamplingParams, StreamKey
from services.worker.engine.backend import TorchBackend
from services.worker.engine.kv.pool import DTYPES, KvPool
from services.worker.engine.model.loader import take_model

SPARE_BYTES = 8 * 2**30
NUM_PROFILED = 16
GREEDY = SamplingParams(temperature=0.0, max_tokens=1)


def network(shape: Shape, device: torch.device, dtype: str) -> Any:
    """Return a transformers model of this shape with random weights."""
    from transformers import AutoModelForCausalLM

    factory: Any = AutoModelForCausalLM
    torch.manual_seed(0)
    with torch.device(device):
        return factory.from_config(shape.config(), dtype=DTYPES[dtype]).eval()


class Engine:
    """A backend with a pool for the largest of the cases that fit; the pool is random KV."""

    def __init__(
        self,
        shape: Shape,
        cases: tuple[Case, ...],
        device: torch.device,
        dtype: str,
    ) -> None:
        self._device, self._shape = device, shape
        model = take_model(network(shape, device, dtype), ())
        wanted = sorted(case.num_blocks for case in cases)
        room = _room(shape, device)
        self.num_blocks = max((num for num in wanted if room is None or num <= room), default=0)
        pool = KvPool(model.kv_shape, self.num_blocks, BLOCK_SIZE, device)
        with torch.inference_mode():
            for plane in (*pool.keys, *pool.values):
                plane.normal_()
        self._backend = TorchBackend(model, pool)
        self._backend.warm_up()
        self._rng = random.Random(0)
        self._blocks = list(range(self.num_blocks))
        self._rng.shuffle(self._blocks)

    def fits(self, case: Case) -> bool:
        """Return whether the pool holds the case's contexts."""
        return case.num_blocks <= self.num_blocks

    def run(self, case: Case, repeats: int) -> float:
        """Return the median seconds of the pass, with its draws."""
        forward_pass = ForwardPass(0, self._items(case))
        return seconds(lambda: self._backend.run(forward_pass), self._device, repeats)

    def profile(self, case: Case) -> list[dict[str, object]]:
        """Return the longest kernels of one pass, on a CPU its operators."""
        forward_pass = ForwardPass(0, self._items(case))
        self._backend.run(forward_pass)
        with torch.profiler.profile() as profiled:
            self._backend.run(forward_pass)
            wait(self._device)
        attribute = "self_device_time_total" if self._device.type == "cuda" else "cpu_time_total"
        found = [
            {"name": each.key, "calls": each.count, "seconds": getattr(each, attribute) / 1e6}
            for each in profiled.key_averages()
        ]
        found.sort(key=lambda each: (-float(str(each["seconds"])), str(each["name"])))
        return found[:NUM_PROFILED]

    def _items(self, case: Case) -> tuple[PassItem, ...]:
        blocks = iter(self._blocks)
        items = [self._item(n, case.context - 1, 1, blocks) for n in range(case.num_decodes)]
        if case.num_rows:
            items.append(self._item(case.num_decodes, case.start, case.num_rows, blocks))
        return tuple(items)

    def _item(self, number: int, start: int, count: int, blocks: Any) -> PassItem:
        held = [next(blocks) for _ in range(-(-(start + count) // BLOCK_SIZE))]
        ids = tuple(self._rng.randrange(self._shape.vocab_size) for _ in range(count))
        return PassItem(StreamKey("bench", number), ids, start, held, True, GREEDY, ids, ())


def _room(shape: Shape, device: torch.device) -> int | None:
    """Return the KV blocks that the device has room for beside the memory of passes."""
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info(device)[0] - SPARE_BYTES
    return int(free // (shape.kv_bytes_per_token * BLOCK_SIZE))
