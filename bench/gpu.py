"""A bench of one GPU and a model of Llama 3.1 8B's shape, in under nine minutes.

    python -m bench.gpu --json FILE

Checks the attention kernels, measures the card's own rates, then the engine's decode, prefill
and mixed passes, then the same through transformers' continuous batching. The report is written
after each part; what was not measured is null with a reason. ``--shape tiny --device cpu`` is a
dry run of the same code.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench.card import device as card
from bench.card.cases import CASES, SHAPES, Case, least_seconds, row
from bench.output import write_json

Timings = tuple[dict[Case, float], dict[Case, str]]
"""Seconds by case, and why some are missing."""

MAX_ERRORS = {"float32": 1e-5, "float16": 3e-3, "bfloat16": 2e-2}


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    made = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    made.add_argument("--shape", choices=sorted(SHAPES), default="llama-8b")
    made.add_argument("--device", default="cuda")
    made.add_argument("--minutes", type=float, default=8.5, help="for everything (8.5)")
    made.add_argument("--repeats", type=int, default=20, help="of each pass (20)")
    made.add_argument("--parts", default="check,sweep,engine,profile,peer", help="which of these")
    made.add_argument("--json", type=Path, help="where the report is written")
    return made


class GpuBench:
    """A run: the figures so far (``found``), which are written after each part."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.found: dict[str, Any] = {}
        self._args = args
        self._parts = args.parts.split(",")
        self._deadline = time.monotonic() + 60 * args.minutes
        self._device = torch.device(args.device)
        self._shape, self._cases = SHAPES[args.shape], CASES[args.shape]
        self._dtype = "bfloat16" if self._shape.itemsize == 2 else "float32"
        self._rates: card.CardRates

    def add(self, name: str, value: object) -> None:
        """Add a part and write the report."""
        self.found[name] = value
        print(f"{name}: {json.dumps(value)}", file=sys.stderr, flush=True)
        write_json(self._args.json, self.found)

    def run(self) -> None:
        """Measure every part."""
        is_small = self._args.shape == "tiny"
        self.add("device", card.describe(self._device))
        self.add("shape", self._args.shape)
        self._rates = card.measure(self._device, getattr(torch, self._dtype), small=is_small)
        self.add("rates", card.as_json(self._rates))
        with torch.inference_mode():
            if "check" in self._parts or "sweep" in self._parts:
                self._kernels()
        ours: Timings = ({}, {})
        if "engine" in self._parts:
            ours = self._engine()
        self._rows(ours, ({}, {}))
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        if "peer" in self._parts:
            self._rows(ours, self._peer())

    def _rows(self, ours: Timings, peer: Timings) -> None:
        rates, found = self._rates, []
        for case in self._cases:
            least = least_seconds(self._shape, case, rates.bytes_per_s, rates.matmul_flops_per_s)
            timings = (ours, peer)
            (taken, why), (theirs, why_no_peer) = (
                (seconds.get(case), whys.get(case)) for seconds, whys in timings
            )
            found.append(row(case, least, taken, theirs, why, why_no_peer))
        self.add("rows", found)

    def _kernels(self) -> None:
        if self._device.type != "cuda":
            self.add("kernel_checks", None)
            self.add("kernel_sweep", None)
            return
        from bench.card import kernels  # needs Triton

        checks = list(kernels.check(self._shape, self._device, tuple(MAX_ERRORS)))
        self.add("kernel_checks", checks)
        wrong = [c for c in checks if not float(c["error"]) < MAX_ERRORS[str(c["dtype"])]]  # type: ignore[arg-type]
        if wrong:
            sys.exit(f"the kernels are wrong: {wrong}")
        if "sweep" in self._parts:
            cases = tuple(c for c in self._cases if c.kind != "mixed" and c.num_decodes < 256)
            processors = torch.cuda.get_device_properties(self._device).multi_processor_count
            dtype = getattr(torch, self._dtype)
            swept = kernels.sweep(self._shape, cases, self._device, dtype, processors)
            self.add("kernel_sweep", list(swept))

    def _engine(self) -> Timings:
        from bench.card.engine import Engine

        engine = Engine(self._shape, self._cases, self._device, self._dtype)
        found: dict[Case, float] = {}
        reasons: dict[Case, str] = {}
        for case in self._cases:
            if not engine.fits(case):
                reasons[case] = "its KV does not fit"
            elif time.monotonic() > self._deadline:
                reasons[case] = "no time left"
            else:
                found[case] = engine.run(case, self._args.repeats)
        if "profile" in self._parts and time.monotonic() < self._deadline:
            kinds = {case.kind: case for case in found}  # the last, largest of each
            self.add("profile", {str(case): engine.profile(case) for case in kinds.values()})
        return found, reasons

    def _peer(self) -> Timings:
        """Return a peer's timings; one that fails is not asked again."""
        from bench.card.peer import ContinuousPeer

        found: dict[Case, float] = {}
        reasons: dict[Case, str] = {}
        failed = ""
        try:
            peer = ContinuousPeer(self._shape, self._device, self._dtype)
        except (RuntimeError, ValueError, TypeError, AttributeError, ImportError) as error:
            return found, dict.fromkeys(self._cases, f"{type(error).__name__}: {error}")
        self.add("peer_attention", peer.attention)
        ordered = sorted(
            self._cases, key=lambda c: (c.num_decodes * c.context + c.num_rows, str(c))
        )
        for case in ordered:
            taken = None
            if not failed:
                try:
                    taken = peer.run(case, self._deadline)
                except (TimeoutError, RuntimeError) as error:
                    failed = f"{type(error).__name__}: {error}"
            if taken is not None:
                found[case] = taken
            else:
                reasons[case] = failed or "it has no such pass"
        peer.close()
        return found, reasons


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure and report."""
    bench = GpuBench(parser().parse_args(arguments))
    bench.run()
    return bench.found


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    os._exit(0)  # a peer that was stopped in the middle keeps a thread that would hold the process
