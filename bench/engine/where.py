"""Splits a decode pass's time: of the worker's decoder, and of transformers' own modules."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import AutoModelForCausalLM

from headway.forward_pass import ForwardPass, PassItem
from headway.request import SamplingParams, StreamKey
from services.worker.engine.backend import TorchBackend
from services.worker.engine.cpu.fixed import FixedOrder
from services.worker.engine.cpu.operators import Operators
from services.worker.engine.cpu.product import FewRows
from services.worker.engine.kv.pool import DTYPES, KvPool
from services.worker.engine.model.by_transformers import as_it_is
from services.worker.engine.model.loaded import take_model
from services.worker.engine.model.network_decoder import ATTENTION_NAME

BLOCK_SIZE = 16
NUM_TIMED = 40
NUM_PROFILED = 10
KINDS: dict[str, tuple[str, ...]] = {
    "products": (
        "aten::addmm",
        "aten::mm",
        "mkldnn::",
        "aten::linear",
        "aten::bmm",
        "onednn::",
        "FewRows.",
        "FixedOrder.",
    ),
    "attention": (
        "aten::_scaled_dot_product",
        "aten::scaled_dot_product",
        "Operators.store_and_attend",
    ),
    "KV copies": ("aten::index_select", "aten::index_copy_", "aten::cat"),
}
"""Kinds by the beginning of an operator's name; all others are small operators."""

COMPILED = (
    *((Operators, name) for name in ("rms_norm", "silu_mul", "greatest", "store_and_attend")),
    *((FewRows, name) for name in ("product", "gated")),
    (FixedOrder, "product"),
)
"""Kernels that torch's profiler does not know."""


@dataclass(frozen=True, slots=True)
class PassSplit:
    """Milliseconds of the fastest pass by kind; ``python``: the time outside of operators.

    ``decoder``: the worker's (headway), or transformers' own modules over the same paged KV.
    """

    decoder: str
    batch: int
    kinds: dict[str, float]
    small: float
    num_operators: int
    python: float
    total: float


def where(model: str, dtype: str, num_threads: int, batches: Sequence[int]) -> list[PassSplit]:
    """Measure decode passes over contexts of 128 tokens with both decoders."""
    torch.set_num_threads(num_threads)
    splits: list[PassSplit] = []
    for name, make in (("modules", _plain), ("headway", _packed)):
        backend = make(model, dtype, max(batches))
        splits += [_measure(name, backend, batch) for batch in batches]
    return splits


def _network(model: str, dtype: str) -> Any:
    factory = cast(Any, AutoModelForCausalLM)
    options = {"dtype": DTYPES[dtype], "attn_implementation": ATTENTION_NAME}
    return factory.from_pretrained(model, **options).eval()


def _plain(model: str, dtype: str, batch: int) -> TorchBackend:
    return _backend(as_it_is(_network(model, dtype), ()), batch)


def _packed(model: str, dtype: str, batch: int) -> TorchBackend:
    return _backend(take_model(_network(model, dtype), ()), batch)


def _backend(loaded: Any, batch: int) -> TorchBackend:
    pool = KvPool(loaded.kv_shape, 16 * batch, BLOCK_SIZE, torch.device("cpu"))
    return TorchBackend(loaded, pool)


def _measure(name: str, backend: TorchBackend, batch: int) -> PassSplit:
    step = _decode(backend, batch)
    for _ in range(5):
        step()
    times = []
    for _ in range(NUM_TIMED):
        started_at = time.perf_counter()
        step()
        times.append(time.perf_counter() - started_at)
    total = 1e3 * min(times)
    splits = []
    for _ in range(NUM_PROFILED):
        with _compiled_named(), profile(activities=[ProfilerActivity.CPU]) as record:
            step()
        splits.append(_split(name, batch, record.key_averages(), total))
    return min(splits, key=lambda each: each.small + sum(each.kinds.values()))


@contextmanager
def _compiled_named() -> Iterator[None]:
    """Show compiled kernels to the profiler, by the names of their methods."""
    with ExitStack() as stack:
        for owner, name in COMPILED:
            stack.enter_context(patch.object(owner, name, _recorded(getattr(owner, name))))
        yield


def _recorded(method: Callable[..., Any]) -> Callable[..., Any]:
    def recorded(*args: Any, **kwargs: Any) -> Any:
        with record_function(method.__qualname__):
            return method(*args, **kwargs)

    return recorded


def _split(name: str, batch: int, events: Sequence[Any], total: float) -> PassSplit:
    kinds = dict.fromkeys(KINDS, 0.0)
    small, num_operators = 0.0, 0
    for event in events:
        spent = event.self_cpu_time_total / 1e3
        num_operators += event.count
        kind = next((k for k, begins in KINDS.items() if event.key.startswith(begins)), None)
        if kind is None:
            small += spent
        else:
            kinds[kind] += spent
    python = max(0.0, total - small - sum(kinds.values()))
    return PassSplit(name, batch, kinds, small, num_operators, python, total)


def _decode(backend: TorchBackend, batch: int) -> Callable[[], object]:
    """Return a pass with a token for each request, whose contexts do not grow."""
    params, length = SamplingParams(temperature=0.0), 128
    tables = [tuple(range(16 * n, 16 * n + 16)) for n in range(batch)]
    items = [
        PassItem(StreamKey("g", n), (n % 200,), length, table, True, params, (), ())
        for n, table in enumerate(tables)
    ]
    prompts = [
        PassItem(StreamKey("g", n), (1,) * length, 0, table, False, params, (), ())
        for n, table in enumerate(tables)
    ]
    backend.run(ForwardPass(0, tuple(prompts)))
    return lambda: backend.run(ForwardPass(1, tuple(items)))
