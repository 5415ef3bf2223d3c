"""The card: its name, its rates, and timing on it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class CardRates:
    """The rates of a card as measured in this run; a copied byte counts twice."""

    copy_bytes_per_s: float
    read_bytes_per_s: float
    matmul_flops_per_s: float

    @property
    def bytes_per_s(self) -> float:
        """Return the roofline's rate: the greater one."""
        return max(self.copy_bytes_per_s, self.read_bytes_per_s)


def describe(device: torch.device) -> dict[str, object]:
    """Return names and versions."""
    facts: dict[str, object] = {"python": platform.python_version(), "card": None, "cuda": None}
    for name in ("torch", "triton", "transformers"):
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            facts[name] = None
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts["card"] = properties.name
        facts["memory_bytes"] = properties.total_memory
        facts["processors"] = properties.multi_processor_count
        facts["cuda"] = torch.version.cuda
    return facts


def dtype_name(itemsize: int) -> str:
    """Return the type of a shape's weights: a key of ``DTYPES``."""
    return "bfloat16" if itemsize == 2 else "float32"


def runs_kernels(device: torch.device) -> bool:
    """Return whether Triton's kernels run: on a card, or interpreted."""
    return device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"


def num_processors(device: torch.device) -> int:
    """Return the card's multiprocessors; a few where there is no card."""
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def wait(device: torch.device) -> None:
    """Wait until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Return the median wall time of ``run`` with the device's work, after a warm-up."""
    run()
    wait(device)
    times = []
    for _ in range(repeats):
        started_at = time.perf_counter()
        run()
        wait(device)
        times.append(time.perf_counter() - started_at)
    return median(times)


def device_seconds(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Return the device's own time for one ``run``, of ``repeats`` in a row."""
    if device.type != "cuda":
        return seconds(run, device, repeats)
    run()
    events: Any = torch.cuda.Event  # torch does not type it
    begin, end = (events(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / repeats


def recorded_seconds(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Return the device's own time for one ``run`` that no launch delays: from a recorded graph.

    ``run`` must not wait for the device.
    """
    if device.type != "cuda":
        return seconds(run, device, repeats)
    run()
    wait(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            run()
    return device_seconds(graph.replay, device, 3) / repeats


def measure(device: torch.device, dtype: torch.dtype, small: bool) -> CardRates:
    """Copy and read a buffer far larger than any cache; multiply large random matrices."""
    copying, reading = _memory_rates(device, 2**22 if small else 2**33)
    size = 256 if small else 8192
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    multiplying = device_seconds(lambda: left @ right, device, 20)
    return CardRates(copying, reading, 2 * size**3 / multiplying)


def _memory_rates(device: torch.device, num_bytes: int) -> tuple[float, float]:
    """Return the rates of a copy and of a read, bytes/s."""
    source = torch.rand(num_bytes // 4, device=device)
    target = torch.empty_like(source)
    copying = device_seconds(lambda: target.copy_(source), device, 10)
    reading = device_seconds(lambda: source.amax(), device, 10)
    return 2 * num_bytes / copying, num_bytes / reading


def as_json(rates: CardRates) -> dict[str, float]:
    """Return the rates for the report."""
    return {**asdict(rates), "roofline_bytes_per_s": rates.bytes_per_s}
