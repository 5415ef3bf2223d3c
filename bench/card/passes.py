"""The first step: kernels, rates, passes against the roofline, and a peer's."""

from __future__ import annotations

import gc

import torch

from bench.card import device as card
from bench.card.cases import CASES, SHAPES, Case, least_seconds, row
from bench.card.report import CardReport
from bench.card.step import CardSetting

Timings = tuple[dict[Case, float], dict[Case, str]]
"""Seconds by case, and why some are missing."""

MAX_ERRORS = {"float32": 1e-5, "float16": 3e-3, "bfloat16": 2e-2}
CHECKED_BLOCKS = (16, 64)


def run(report: CardReport, setting: CardSetting) -> None:
    """Measure every part."""
    PassesBench(report, setting).run()


class PassesBench:
    """A run over one shape's cases."""

    def __init__(self, report: CardReport, setting: CardSetting) -> None:
        self._report, self._setting = report, setting
        self._device = torch.device(setting.device)
        self._shape, self._cases = SHAPES[setting.shape], CASES[setting.shape]
        self._dtype = card.dtype_name(self._shape.itemsize)
        self._rates: card.CardRates

    def run(self) -> None:
        """Measure every part; rows are added after our own passes, and again with the peer's."""
        report, parts = self._report, self._setting.parts
        report.add("device", card.describe(self._device))
        report.add("shape", self._setting.shape)
        dtype = getattr(torch, self._dtype)
        self._rates = card.measure(self._device, dtype, small=self._setting.is_small)
        report.add("rates", card.as_json(self._rates))
        with torch.inference_mode():
            if "check" in parts:
                with report.part("check"):
                    self._check()
            if "sweep" in parts and report.has_time("sweep"):
                with report.part("sweep"):
                    self._sweep()
        ours: Timings = ({}, {})
        if "engine" in parts and report.has_time("engine"):
            with report.part("engine"):
                self._engine(*ours)
        self._rows(ours, ({}, {}))
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        if "peer" in parts and report.has_time("peer"):
            with report.part("peer"):
                self._rows(ours, self._peer())

    def _rows(self, ours: Timings, peer: Timings) -> None:
        rates, rows = self._rates, []
        for case in self._cases:
            least = least_seconds(self._shape, case, rates.bytes_per_s, rates.matmul_flops_per_s)
            timings = (ours, peer)
            (taken, why), (theirs, why_no_peer) = (
                (seconds.get(case), whys.get(case)) for seconds, whys in timings
            )
            rows.append(row(case, least, taken, theirs, why, why_no_peer))
        self._report.add("rows", rows)

    def _check(self) -> None:
        """Compare the kernels; a wrong one is named, and all that it computes is then void."""
        if not card.runs_kernels(self._device):
            self._report.add("kernel_checks", None)
            return
        from bench.card import kernels, whole  # they need Triton

        checks: list[dict[str, object]] = []
        dtypes: tuple[str, ...] = tuple(MAX_ERRORS)
        cases = kernels.CHECKED
        if self._setting.is_small:  # interpreted: bfloat16 is not, and long contexts take minutes
            dtypes, cases = ("float32",), kernels.FEW_CHECKED
        for size in CHECKED_BLOCKS:
            checks += kernels.check(self._shape, self._device, dtypes, cases, block_size=size)
        self._report.add("kernel_checks", checks)
        wrong = [c for c in checks if not float(str(c["error"])) < MAX_ERRORS[str(c["dtype"])]]
        if wrong:
            raise ArithmeticError(f"the kernels are wrong, mend them first: {wrong}")
        passes: list[dict[str, object]] = []
        small = self._setting.is_small
        for size in CHECKED_BLOCKS:
            passes += whole.check(
                self._shape, self._device, dtypes, is_small=small, block_size=size
            )
            self._report.add("pass_checks", passes)
        if any(map(whole.is_wrong, passes)):
            raise ArithmeticError(f"passes are wrong, mend them first: {passes}")

    def _sweep(self) -> None:
        if self._device.type != "cuda":
            self._report.add("kernel_sweep", None)
            return
        from bench.card import kernels

        cases = tuple(c for c in self._cases if c.kind != "mixed" and c.num_decodes < 256)
        dtype = getattr(torch, self._dtype)
        swept: list[dict[str, object]] = []
        for case in cases:
            if self._report.has_time(f"sweep {case}"):
                swept += kernels.sweep(self._shape, case, self._device, dtype)
                self._report.add("kernel_sweep", swept)

    def _engine(self, timings: dict[Case, float], reasons: dict[Case, str]) -> None:
        from bench.card.engine import Engine, random_model

        model = random_model(self._shape, self._device, self._dtype)
        engine = Engine(model, self._shape, self._cases, self._device)
        self._report.add("block_size", engine.block_size)
        for case in self._cases:
            if not engine.fits(case):
                reasons[case] = "its KV does not fit"
            elif not self._report.seconds_left:
                reasons[case] = "no time left"
            else:
                timings[case] = engine.run(case, self._setting.repeats)
                self._report.add(f"seconds of {case}", timings[case])
        if "profile" in self._setting.parts and self._report.has_time("profile"):
            kinds = {case.kind: case for case in timings}  # the last, largest of each
            profiles = {str(case): engine.profile(case) for case in kinds.values()}
            self._report.add("profile", profiles)

    def _peer(self) -> Timings:
        """Return a peer's timings; one that fails is not asked again."""
        from bench.card.peer import ContinuousPeer

        timings: dict[Case, float] = {}
        reasons: dict[Case, str] = {}
        failed = ""
        try:
            peer = ContinuousPeer(self._shape, self._device, self._dtype)
        except (RuntimeError, ValueError, TypeError, AttributeError, ImportError) as error:
            return timings, dict.fromkeys(self._cases, f"{type(error).__name__}: {error}")
        self._report.add("peer_attention", peer.attention)
        ordered = sorted(
            self._cases, key=lambda c: (c.num_decodes * c.context + c.num_rows, str(c))
        )
        for case in ordered:
            taken = None
            if not failed:
                try:
                    taken = peer.run(case, self._report.deadline)
                except (TimeoutError, RuntimeError) as error:
                    failed = f"{type(error).__name__}: {error}"
            if taken is not None:
                timings[case] = taken
            else:
                reasons[case] = failed or "it has no such pass"
        peer.close()
        return timings, reasons
