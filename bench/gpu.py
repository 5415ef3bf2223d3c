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


class Report:
    """The figures so far, written after each part."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.found: dict[str, Any] = {}

    def add(self, name: str, value: object) -> None:
        """Add a part and write the report."""
        self.found[name] = value
        print(f"{name}: {json.dumps(value)}", file=sys.stderr, flush=True)
        if self._path is not None:
            self._path.write_text(json.dumps(self.found, indent=2) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure and report."""
    args = parser().parse_args(arguments)
    deadline = time.monotonic() + 60 * args.minutes
    device, parts = torch.device(args.device), args.parts.split(",")
    dtype = "bfloat16" if SHAPES[args.shape].itemsize == 2 else "float32"
    report = Report(args.json)
    report.add("device", card.describe(device))
    report.add("shape", args.shape)
    rates = card.measure(device, getattr(torch, dtype), small=args.shape == "tiny")
    report.add("rates", card.as_json(rates))
    with torch.inference_mode():
        if "check" in parts or "sweep" in parts:
            _kernels(args, device, dtype, report)
    ours: dict[Case, float] = {}
    reasons: dict[Case, str] = {}
    if "engine" in parts:
        ours, reasons = _engine(args, device, dtype, deadline, report)
    _rows(args.shape, rates, ours, {}, reasons, {}, report)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if "peer" in parts:
        peer, no_peer = _peer(args, device, dtype, deadline, report)
        _rows(args.shape, rates, ours, peer, reasons, no_peer, report)
    return report.found


def _rows(
    name: str,
    rates: card.Rates,
    ours: dict[Case, float],
    peer: dict[Case, float],
    reasons: dict[Case, str],
    no_peer: dict[Case, str],
    report: Report,
) -> None:
    shape = SHAPES[name]
    found = []
    for case in CASES[name]:
        least = least_seconds(shape, case, rates.bytes_per_s, rates.matmul_flops_per_s)
        why, why_no_peer = reasons.get(case), no_peer.get(case)
        found.append(row(case, least, ours.get(case), peer.get(case), why, why_no_peer))
    report.add("rows", found)


def _kernels(args: argparse.Namespace, device: torch.device, dtype: str, report: Report) -> None:
    if device.type != "cuda":
        report.add("kernel_checks", None)
        report.add("kernel_sweep", None)
        return
    from bench.card import kernels  # needs Triton

    shape = SHAPES[args.shape]
    checks = list(kernels.check(shape, device, tuple(MAX_ERRORS)))
    report.add("kernel_checks", checks)
    wrong = [c for c in checks if not float(c["error"]) < MAX_ERRORS[str(c["dtype"])]]  # type: ignore[arg-type]
    if wrong:
        sys.exit(f"the kernels are wrong: {wrong}")
    if "sweep" in args.parts.split(","):
        cases = tuple(c for c in CASES[args.shape] if c.kind != "mixed" and c.num_decodes < 256)
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        swept = kernels.sweep(shape, cases, device, getattr(torch, dtype), processors)
        report.add("kernel_sweep", list(swept))


def _engine(
    args: argparse.Namespace, device: torch.device, dtype: str, deadline: float, report: Report
) -> tuple[dict[Case, float], dict[Case, str]]:
    """Return seconds by case, and why some are missing."""
    from bench.card.engine import Engine

    cases = CASES[args.shape]
    engine = Engine(SHAPES[args.shape], cases, device, dtype)
    found: dict[Case, float] = {}
    reasons: dict[Case, str] = {}
    for case in cases:
        if not engine.fits(case):
            reasons[case] = "its KV does not fit"
        elif time.monotonic() > deadline:
            reasons[case] = "no time left"
        else:
            found[case] = engine.run(case, args.repeats)
    if "profile" in args.parts.split(",") and time.monotonic() < deadline:
        kinds = {case.kind: case for case in found}  # the last, largest of each
        report.add("profile", {str(case): engine.profile(case) for case in kinds.values()})
    return found, reasons


def _peer(
    args: argparse.Namespace, device: torch.device, dtype: str, deadline: float, report: Report
) -> tuple[dict[Case, float], dict[Case, str]]:
    """Return seconds by case, and why some are missing; a peer that fails is not asked again."""
    from bench.card.peer import Peer

    found: dict[Case, float] = {}
    reasons: dict[Case, str] = {}
    failed: str | None = None
    cases = CASES[args.shape]
    try:
        peer = Peer(SHAPES[args.shape], device, dtype)
    except (RuntimeError, ValueError, TypeError, AttributeError, ImportError) as error:
        return found, dict.fromkeys(cases, f"{type(error).__name__}: {error}")
    report.add("peer_attention", peer.attention)
    for case in sorted(cases, key=lambda c: (c.num_decodes * c.context + c.num_rows, str(c))):
        if failed is None:
            try:
                taken = peer.run(case, deadline)
            except (TimeoutError, RuntimeError) as error:
                failed = f"{type(error).__name__}: {error}"
            else:
                if taken is not None:
                    found[case] = taken
                    continue
                reasons[case] = "it has no such pass"
        reasons.setdefault(case, failed or "it has no such pass")
    peer.close()
    return found, reasons


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    os._exit(0)  # a peer that was stopped in the middle keeps a thread that would hold the process
