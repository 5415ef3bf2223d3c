"""The second step: what is to be chosen by measurement, each way beside the others.

Block sizes, backends for prompts, and the batch sizes that decode passes are recorded for.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import torch

from bench.card import device as card
from bench.card.cases import CASES, SHAPES, Case
from bench.card.engine import Engine, random_model
from bench.card.report import CardReport
from bench.card.step import CardSetting
from services.worker.engine.gpu.cuda_graphs import bucket_sizes
from services.worker.engine.gpu.flash import flash_prefill_attention, has_flash_attention

BLOCK_SIZES = (16, 64, 128)
MOST_ROWS = 512
ROWS = (1, 3, 7, 12, 20, 36, 65, 100, 200, 260, 400)
"""Batch sizes that lie between recorded ones in one way or another."""
FEW_ROWS = (1, 12)
RECORDED: Mapping[str, tuple[int, ...]] = {
    "powers of two": tuple(2**n for n in range(10)),
    "the engine's": bucket_sizes(MOST_ROWS),
    "every second": (1, *range(2, MOST_ROWS + 1, 2)),
}


def run(report: CardReport, setting: CardSetting) -> None:
    """Measure every part."""
    device = torch.device(setting.device)
    report.add("device", card.describe(device))
    report.add("shape", setting.shape)
    choices = ChoicesBench(report, setting, device)
    for name, measure in (
        ("blocks", choices.blocks),
        ("prompts", choices.prompts),
        ("graphs", choices.graphs),
    ):
        if name in setting.parts and report.has_time(name):
            with report.part(name):
                measure()


class ChoicesBench:
    """The comparisons, over one model with random weights."""

    def __init__(self, report: CardReport, setting: CardSetting, device: torch.device) -> None:
        self._report, self._setting, self._device = report, setting, device
        self._shape = SHAPES[setting.shape]
        # The longest contexts with the largest batch hold no more KV than the others.
        self._cases = tuple(c for c in CASES[setting.shape] if c.num_decodes * c.context < 2**20)
        self._dtype = card.dtype_name(self._shape.itemsize)
        self._model = random_model(self._shape, device, self._dtype)

    def blocks(self) -> None:
        """Time every pass with every block size, and name the best by kind of pass."""
        seconds: dict[str, dict[str, float]] = {}
        for size in BLOCK_SIZES:
            if not self._report.has_time(f"blocks of {size}"):
                break
            engine = self._engine(self._cases, size)
            seconds[str(size)] = {
                str(case): engine.run(case, self._setting.repeats)
                for case in self._cases
                if engine.fits(case) and self._report.has_time(f"blocks of {size}, {case}")
            }
            self._report.add("seconds_by_block_size", seconds)
            del engine
        self._report.add("best_block_size", best_by_kind(seconds, self._cases))

    def prompts(self) -> None:
        """Compare flash-attn-4 with the Triton kernel, one layer at a time."""
        self._report.add("flash_attn_4", _version("flash-attn-4"))
        if not card.runs_kernels(self._device):
            self._report.leave_out("prompts", "kernels need a card, or TRITON_INTERPRET=1")
            return
        from bench.card.kernels import FEW_CHECKED

        cases = [case for case in self._cases if case.kind == "prefill"]
        if self._device.type != "cuda":
            cases = [case for case in FEW_CHECKED if case.kind == "prefill"]
        rows: list[dict[str, object]] = []
        for size in BLOCK_SIZES:
            for case in cases:
                if self._report.has_time(f"prompts, blocks of {size}, {case}"):
                    rows += self._backends(case, size)
                    self._report.add("prompts_by_backend", rows)

    def _backends(self, case: Case, block_size: int) -> list[dict[str, object]]:
        from bench.card.kernels import Layer, rates, relative_error

        dtype = getattr(torch, self._dtype)
        layer = Layer.of(self._shape, case, self._device, dtype, block_size)
        ways = {"triton": partial(layer.attend, card.num_processors(self._device))}
        if has_flash_attention():
            call = partial(flash_prefill_attention, layer.query, *layer.pool)
            ways["flash-attn-4"] = partial(call, layer.firsts, layer.lengths, **layer.settings)
        else:
            self._report.leave_out("flash-attn-4", "it is not installed here")
        rows = []
        for name, attend in ways.items():
            said: dict[str, object] = {"backend": name, "block_size": block_size, **_blank(case)}
            try:
                said["error"] = relative_error(attend(), layer.expected())
                taken = card.device_seconds(attend, self._device, self._setting.repeats)
                said |= rates(self._shape, case, dtype.itemsize, taken)
            except Exception as error:  # a library that compiles for the card fails in any way
                self._report.leave_out(f"{name}, {case}", f"{type(error).__name__}: {error}")
            rows.append(said)
        return rows

    def graphs(self) -> None:
        """Time batch sizes between those that are recorded: a pass pays for its padding."""
        from services.worker.engine.model.decoder import Decoder

        all_rows = FEW_ROWS if self._setting.is_small else ROWS
        engine = self._engine((Case(max(all_rows), 64),), 0)
        decoder = self._model.decoder
        assert isinstance(decoder, Decoder), "a random model is in the packed decoder"
        by_sizes: dict[str, dict[str, object]] = {}
        ways = RECORDED if self._device.type == "cuda" else {"none": ()}
        for name, sizes in ways.items():
            if not self._report.has_time(f"graphs, {name}"):
                break
            said: dict[str, object] = {"num_recorded": len(sizes)}
            if sizes:
                said["seconds_to_record"] = self._record(engine, sizes)
            said["seconds_by_rows"] = {
                rows: engine.run_rows(rows, self._setting.repeats) for rows in all_rows
            }
            by_sizes[name] = said
            self._report.add("graphs", by_sizes)

    def _record(self, engine: Engine, sizes: tuple[int, ...]) -> float:
        from services.worker.engine.model.kernel_decoder import KernelDecoder

        decoder = self._model.decoder
        assert isinstance(decoder, KernelDecoder), "a card's decoder records"
        card.wait(self._device)
        began_at = time.perf_counter()
        with torch.inference_mode():
            decoder.prepare(engine.pool, None, sizes)
        card.wait(self._device)
        return time.perf_counter() - began_at

    def _engine(self, cases: Sequence[Case], block_size: int) -> Engine:
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return Engine(self._model, self._shape, tuple(cases), self._device, block_size)


def best_by_kind(
    seconds_by_size: Mapping[str, Mapping[str, float]], cases: Sequence[Case]
) -> dict[str, str | None]:
    """Return by kind of pass the block size whose passes took least together, of whole rows."""
    best: dict[str, str | None] = {}
    for kind in dict.fromkeys(case.kind for case in cases):
        names = [str(case) for case in cases if case.kind == kind]
        whole = {
            size: sum(seconds[name] for name in names)
            for size, seconds in seconds_by_size.items()
            if all(name in seconds for name in names)
        }
        best[kind] = min(whole, key=lambda size: (whole[size], int(size))) if whole else None
    return best


def _blank(case: Case) -> dict[str, object]:
    """Return a row without figures: what fails stays null."""
    figures = dict.fromkeys(("error", "seconds", "bytes_per_s", "flops_per_s"))
    return {"num_rows": case.num_rows, "start": case.start, **figures}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
