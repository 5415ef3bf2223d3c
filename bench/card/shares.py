"""The third step: where a decode pass's time goes, and what planning ahead hides."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from statistics import median
from types import MappingProxyType
from typing import Any

import torch

from bench.card import device as card
from bench.card.ahead import DrivenEngine
from bench.card.cases import SHAPES, Case
from bench.card.engine import Engine, busy_times, random_model
from bench.card.report import CardReport
from bench.card.step import CardSetting

BATCHES = (1, 16, 64)
CONTEXT = 1024
NUM_PROFILED = 10
NUM_TIMELINES = 5
NUM_ROUNDS = 5

KERNELS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "products": (
            "gemm",
            "gemv",
            "cutlass",
            "nvjet",
            "xmma",
            "splitk",
            "cublas",
            "mm",
            "linear",
        ),
        "attention": ("_attend", "_merge", "_plan", "scaled_dot_product"),
        "between products": ("_rope_store", "_norm", "_silu_mul"),
        "copies": ("memcpy", "memset", "copy", "index"),
    }
)
"""Kinds of kernels by a part of their names; what fits none is "other", such as the draw."""
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


def run(report: CardReport, setting: CardSetting) -> None:
    """Measure every part."""
    device = torch.device(setting.device)
    report.add("device", card.describe(device))
    report.add("shape", setting.shape)
    shares = SharesBench(report, setting, device)
    if "kinds" in setting.parts and report.has_time("kinds"):
        with report.part("kinds"):
            shares.kinds()
    if "ahead" in setting.parts and report.has_time("ahead"):
        with report.part("ahead"):
            shares.ahead()


class SharesBench:
    """Decode passes of one model with random weights, profiled and driven."""

    def __init__(self, report: CardReport, setting: CardSetting, device: torch.device) -> None:
        self._report, self._setting, self._device = report, setting, device
        self._shape = SHAPES[setting.shape]
        self._context = 64 if setting.is_small else CONTEXT
        cases = tuple(Case(batch, self._context + 256) for batch in BATCHES)
        model = random_model(self._shape, device, card.dtype_name(self._shape.itemsize))
        self._engine = Engine(model, self._shape, cases, device)

    def kinds(self) -> None:
        """Split a pass by kinds of kernels, launches and what is left."""
        rows = []
        for batch in BATCHES:
            if self._report.has_time(f"kinds at {batch}"):
                rows.append({"batch": batch, **self._split(Case(batch, self._context))})
                self._report.add("kinds", rows)

    def _split(self, case: Case) -> dict[str, object]:
        taken = self._engine.run(case, self._setting.repeats)
        one_pass = self._engine.pass_of(case)
        one_pass()
        with torch.profiler.profile() as profiled:
            for _ in range(NUM_PROFILED):
                one_pass()
            card.wait(self._device)
        by_kind = dict.fromkeys((*KERNELS, "other"), 0.0)
        for name, _, spent in busy_times(profiled, self._device):
            by_kind[kind_of(name)] += spent / NUM_PROFILED
        busy = sum(by_kind.values())
        return {
            "seconds": taken,
            "seconds_by_kind": by_kind,
            "device_share": min(1.0, busy / taken),
            "launch_seconds": _host_seconds(profiled, LAUNCHES),
            "wait_seconds": _host_seconds(profiled, WAITS),
            "timeline": self._timeline(case),
        }

    def _timeline(self, case: Case) -> dict[str, float] | None:
        if self._device.type != "cuda":
            return None
        return self._engine.timeline(case, NUM_TIMELINES)

    def ahead(self) -> None:
        """Generate with the worker's core and thread, in turn with and without planning ahead."""
        rows = []
        for batch in BATCHES:
            if self._report.has_time(f"ahead at {batch}"):
                rows.append({"batch": batch, **asyncio.run(self._in_turn(batch))})
                self._report.add("ahead", rows)

    async def _in_turn(self, batch: int) -> dict[str, object]:
        backends = {False: self._engine.backend, True: self._engine.queueing}
        engines = {ahead: DrivenEngine(each, ahead) for ahead, each in backends.items()}
        seconds: dict[bool, list[float]] = {False: [], True: []}
        between: dict[bool, list[float]] = {False: [], True: []}
        num_rounds = 1 if self._setting.is_small else NUM_ROUNDS
        try:
            for number in range(num_rounds + 1):
                for ahead in (False, True) if number % 2 else (True, False):
                    if number and not self._report.seconds_left:
                        break
                    one = await engines[ahead].generate(batch, self._context, self._num_tokens)
                    if number:  # round 0 warms up
                        seconds[ahead].append(one.seconds_per_pass)
                        between[ahead].append(one.seconds_between)
        finally:
            for engine in engines.values():
                engine.close()
        return {
            f"{name}_{'ahead' if ahead else 'in_turn'}": median(values[ahead] or [0.0]) or None
            for name, values in (("seconds_per_pass", seconds), ("seconds_between", between))
            for ahead in (False, True)
        }

    @property
    def _num_tokens(self) -> int:
        return 8 if self._setting.is_small else 128


def kind_of(name: str) -> str:
    """Return the kind of a kernel: the first in ``KERNELS`` that its name fits."""
    low = name.lower()
    for kind, parts in KERNELS.items():
        if any(part in low for part in parts):
            return kind
    return "other"


def _host_seconds(profiled: Any, names: tuple[str, ...]) -> float:
    """Return the processor's seconds a pass in calls of the driver."""
    spent = sum(
        each.self_cpu_time_total for each in profiled.key_averages() if each.key.startswith(names)
    )
    return float(spent) / 1e6 / NUM_PROFILED
