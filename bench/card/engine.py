"""Headway's own engine: a random model in memory, passes through the worker's backend."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch

from bench.card.cases import Case, Shape
from bench.card.device import seconds, wait
from headway.forward_pass import ForwardPass, PassItem
from headway.request import SamplingParams, StreamKey
from services.worker.config import EngineConfig
from services.worker.engine.backend import TorchBackend
from services.worker.engine.kv.pool import DTYPES, KvPool
from services.worker.engine.model.loaded import LoadedModel, take_model
from services.worker.engine.options import Kernels
from services.worker.engine.queueing import QueueingTorchBackend

SPARE_BYTES = 8 * 2**30
NUM_PROFILED = 16
_WHOLE = "whole pass"
GREEDY = SamplingParams(temperature=0.0, max_tokens=1)


def network(shape: Shape, device: torch.device, dtype: str) -> Any:
    """Return a transformers model of this shape with random weights."""
    from transformers import AutoModelForCausalLM

    factory: Any = AutoModelForCausalLM
    torch.manual_seed(0)
    with torch.device(device):
        return factory.from_config(shape.config(), dtype=DTYPES[dtype]).eval()


def random_model(
    shape: Shape, device: torch.device, dtype: str, kernels: Kernels = "auto"
) -> LoadedModel:
    """Return such a model in the engine's decoder."""
    return take_model(network(shape, device, dtype), (), kernels)


class Engine:
    """A backend with a pool for the largest of the cases that fit; the pool is random KV.

    ``block_size`` 0 is the worker's own choice for the device.
    """

    def __init__(
        self,
        model: LoadedModel,
        shape: Shape,
        cases: tuple[Case, ...],
        device: torch.device,
        block_size: int = 0,
    ) -> None:
        self._device, self._shape = device, shape
        config = EngineConfig(device=str(device), block_size=block_size)
        self.block_size = size = config.tokens_per_block
        wanted = sorted(case.num_blocks(size) for case in cases)
        room = _room(shape, device, size)
        self.num_blocks = max((num for num in wanted if room is None or num <= room), default=0)
        self.pool = pool = KvPool(model.kv_shape, self.num_blocks, size, device)
        self.backend = TorchBackend(model, pool)
        self.backend.warm_up()
        self.queueing = QueueingTorchBackend(model, pool)
        with torch.inference_mode():
            for plane in (*pool.keys, *pool.values):
                plane.normal_()
        self._rng = random.Random(0)
        self._blocks = list(range(self.num_blocks))
        self._rng.shuffle(self._blocks)

    def fits(self, case: Case) -> bool:
        """Return whether the pool holds the case's contexts."""
        return case.num_blocks(self.block_size) <= self.num_blocks

    def run(self, case: Case, repeats: int) -> float:
        """Return the median seconds of the pass, with its draws."""
        forward_pass = ForwardPass(0, self._items(case))
        return seconds(lambda: self.backend.run(forward_pass), self._device, repeats)

    def profile(self, case: Case) -> list[dict[str, object]]:
        """Return the longest kernels of one pass, on a CPU its operators."""
        forward_pass = ForwardPass(0, self._items(case))
        self.backend.run(forward_pass)
        with torch.profiler.profile() as profiled:
            self.backend.run(forward_pass)
            wait(self._device)
        kernels = [
            {"name": name, "calls": calls, "seconds": spent}
            for name, calls, spent in busy_times(profiled, self._device)
        ]
        kernels.sort(key=lambda each: (-float(str(each["seconds"])), str(each["name"])))
        return kernels[:NUM_PROFILED]

    def timeline(self, case: Case, repeats: int) -> dict[str, float]:
        """Return where a pass's time goes: kernels, between, before and after them; medians.

        Seconds, and the number of kernels; a GPU's alone.
        """
        one_pass = self.pass_of(case)
        one_pass()
        timelines = []
        for _ in range(repeats):
            wait(self._device)
            with torch.profiler.profile() as profiled:
                with torch.profiler.record_function(_WHOLE):
                    one_pass()
                wait(self._device)
            timelines.append(_timeline(profiled.events()))
        return {key: median(each[key] for each in timelines) for key in timelines[0]}

    def pass_of(self, case: Case) -> Callable[[], object]:
        """Return a run of the case's pass."""
        forward_pass = ForwardPass(0, self._items(case))
        return lambda: self.backend.run(forward_pass)

    def run_rows(self, num_rows: int, repeats: int) -> float:
        """Return the median seconds of a decode pass of so many short requests."""
        return self.run(Case(num_rows, self.block_size), repeats)

    def _items(self, case: Case) -> tuple[PassItem, ...]:
        blocks = iter(self._blocks)
        items = [self._item(n, case.context - 1, 1, blocks) for n in range(case.num_decodes)]
        if case.num_rows:
            items.append(self._item(case.num_decodes, case.start, case.num_rows, blocks))
        return tuple(items)

    def _item(self, number: int, start: int, count: int, blocks: Any) -> PassItem:
        held = [next(blocks) for _ in range(-(-(start + count) // self.block_size))]
        ids = tuple(self._rng.randrange(self._shape.vocab_size) for _ in range(count))
        return PassItem(StreamKey("bench", number), ids, start, held, True, GREEDY, ids, ())


def busy_times(profiled: Any, device: torch.device) -> Iterator[tuple[str, int, float]]:
    """Yield kernels, on a CPU operators: the name, how many ran, and their own seconds.

    A profile also lists the operators that launched a kernel, with the kernel's time: those are
    left out.
    """
    for each in profiled.key_averages():
        if device.type != "cuda":
            yield each.key, each.count, each.self_cpu_time_total / 1e6
        elif "CUDA" in str(each.device_type):
            yield each.key, each.count, each.self_device_time_total / 1e6


def _timeline(events: Any) -> dict[str, float]:
    """Split one profiled pass by its kernels' first and last moments."""
    kernels = [e.time_range for e in events if "CUDA" in str(e.device_type) and e.name != _WHOLE]
    whole = next(
        e.time_range for e in events if e.name == _WHOLE and "CUDA" not in str(e.device_type)
    )
    first, last = min(k.start for k in kernels), max(k.end for k in kernels)
    busy = sum(k.end - k.start for k in kernels)
    spans = {
        "whole": whole.end - whole.start,
        "before": first - whole.start,
        "kernels": busy,
        "between": last - first - busy,
        "after": whole.end - last,
    }
    return {"num_kernels": len(kernels), **{name: us / 1e6 for name, us in spans.items()}}


def _room(shape: Shape, device: torch.device, block_size: int) -> int | None:
    """Return the KV blocks that the device has room for beside the memory of passes."""
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info(device)[0] - SPARE_BYTES
    return int(free // (shape.kv_bytes_per_token * block_size))
