"""The fourth and fifth steps: what the whole cluster does on one card.

Everything is a command of ours with a limit, over one checkpoint with random weights.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.card import device as card
from bench.card.cases import SHAPES
from bench.card.checkpoint import save_checkpoint
from bench.card.commands import OFFLINE, headway, run_within
from bench.card.report import CardReport
from bench.card.step import CardSetting
from bench.runner.processes import Process, until_ok
from headway.errors import Code, HeadwayError
from services.local.store import free_port

_STOP = 45.0
_SHARES = (0.3, 0.6, 0.9)
_KEPT = (
    *("ttft", "tpot", "ttlt", "requests_per_s", "output_tokens_per_s", "num_requests"),
    *("num_finished", "duration", "errors"),
)
TOPOLOGIES = {
    "unified": ("--prefill", "0", "--decode", "0", "--unified", "1"),
    "split": ("--prefill", "1", "--decode", "1"),
}


@dataclass(frozen=True, slots=True)
class CardLoad:
    """The sizes of a step's loads: full, or those of a dry run."""

    start_up: float
    """Seconds in which a cluster must serve."""
    max_model_len: int
    prompt_tokens: int
    num_crowd: int
    seconds: float
    """Seconds of arrivals at each of three rates."""
    check: tuple[str, ...]
    demo: tuple[str, ...]


FULL = CardLoad(
    start_up=180.0,
    max_model_len=16_384,
    prompt_tokens=1024,
    num_crowd=128,
    seconds=15.0,
    check=("--cases", "vllm-like/1P1D/50%,vllm-like/1P1D/80%", "--repeats", "1"),
    demo=("--max-running", "32", "--for", "15s", "--num-requests", "1200", "--max-tokens", "200"),
)
SMALL = CardLoad(
    start_up=900.0,
    max_model_len=2048,
    prompt_tokens=32,
    num_crowd=8,
    seconds=2.0,
    check=("--cases", "vllm-like/1P1D/80%", "--repeats", "1", "--num-requests", "20"),
    demo=(
        *("--regime", "burst", "--for", "60s", "--num-requests", "24"),
        *("--warm-up", "16", "--max-tokens", "32"),
    ),
)


def run(report: CardReport, setting: CardSetting) -> None:
    """Run every part; the checkpoint is made first, unless the folder holds it."""
    device = torch.device(setting.device)
    report.add("device", card.describe(device))
    report.add("shape", setting.shape)
    shape, load = SHAPES[setting.shape], SMALL if setting.is_small else FULL
    with report.part("checkpoint"):
        folder = setting.folder / "random-model"
        dtype = card.dtype_name(shape.itemsize)
        save_checkpoint(folder, shape, load.max_model_len, device, dtype)
        if device.type == "cuda":
            torch.cuda.empty_cache()  # workers need what this process holds
    if "checkpoint" in report.figures["not_done"]:
        return
    cluster = ClusterBench(report, setting, load, folder)
    for name in setting.parts:
        if report.has_time(name):
            with report.part(name):
                cluster.measure(name)


class ClusterBench:
    """Clusters over one checkpoint, one after the other."""

    def __init__(
        self, report: CardReport, setting: CardSetting, load: CardLoad, model: Path
    ) -> None:
        self._report, self._load, self._folder = report, load, setting.folder
        self._deployment = ("--model", str(model), "--device", setting.device)
        self._profile = setting.folder / f"{setting.shape}-card.toml"
        self._kept = ("--keep", str(setting.folder / "runs"))

    def measure(self, part: str) -> None:
        """Measure a part of the step."""
        if part in TOPOLOGIES:
            self._serve(part)
        else:
            {"profile": self._run_profile, "check": self._check, "demo": self._demo}[part]()

    def _serve(self, name: str) -> None:
        """Start a cluster, let a crowd say what it carries, and offer it three shares of that."""
        port = free_port(2)
        url = f"http://127.0.0.1:{port}"
        flags = ("--port", str(port), "--drain-timeout", "5", "--log-dir")
        logs = self._folder / f"{name}-logs"
        logs.mkdir(parents=True, exist_ok=True)
        command = headway("up", *self._deployment, *TOPOLOGIES[name], *flags, str(logs))
        with Process(f"up-{name}", command, self._folder, OFFLINE) as up:
            try:
                began_at = time.monotonic()
                within = min(self._load.start_up, self._report.seconds_left)
                asyncio.run(until_ok(up, f"{url}/health", within=within))
                figures: dict[str, object] = {"start_up_seconds": time.monotonic() - began_at}
                crowd = self._ask(url, f"{name}-crowd", float("inf"), self._load.num_crowd)
                figures["crowd"] = crowd
                self._report.add(name, figures)
                for share in _SHARES:
                    label = f"{name} at {share:.0%}"
                    if self._report.has_time(label, self._load.seconds):
                        rate = share * crowd["requests_per_s"]
                        number = max(8, round(rate * self._load.seconds))
                        figures[f"{share:.0%}"] = {
                            "rate": rate,
                            **self._ask(url, f"{name}-{share:.0%}", rate, number),
                        }
                        self._report.add(name, figures)
            finally:
                up.stop(_STOP)

    def _ask(self, url: str, name: str, rate: float, num_requests: int) -> dict[str, Any]:
        file = self._folder / f"{name}.json"
        command = headway(
            *("bench", "serve", "--url", url, "--prompts", "random-tokens"),
            *("--prompt-tokens", str(self._load.prompt_tokens), "--warmup", "4"),
            *("--rate", str(rate), "--num-requests", str(num_requests), "--json", str(file)),
        )
        self._command(command, name)
        summary = json.loads(file.read_text("utf-8"))["summary"]
        return {key: summary[key] for key in _KEPT}

    def _run_profile(self) -> None:
        out = ("--out", str(self._profile), *self._kept)
        self._command(headway("profile", "run", *self._deployment, *out), "profile")
        self._report.add("profile", self._profile.read_text("utf-8"))

    def _check(self) -> None:
        """Predict loads by the measured profile, and compare."""
        if not self._profile.is_file():
            message = "it needs the part before it: the card's profile"
            raise HeadwayError(Code.FAILED_PRECONDITION, message)
        errors = self._folder / "errors.json"
        report = ("--profile", str(self._profile), "--json", str(errors), *self._kept)
        command = headway("profile", "check", *self._deployment, *self._load.check, *report)
        try:
            self._command(command, "check")
        finally:
            if errors.is_file():
                self._report.add("errors", json.loads(errors.read_text("utf-8")))

    def _demo(self) -> None:
        file = self._folder / "demo.json"
        logs = ("--log-dir", str(self._folder / "demo-logs"), "--json", str(file))
        try:
            self._command(headway("demo", *self._deployment, *self._load.demo, *logs), "demo")
        finally:
            if file.is_file():
                self._report.add("demo", json.loads(file.read_text("utf-8")))

    def _command(self, command: list[str], name: str) -> None:
        """Run a command within what is left; UNAVAILABLE where it does not end well."""
        log = self._folder / f"{name}.log"
        failure = run_within(command, self._report.seconds_left, log)
        if failure:
            raise HeadwayError(Code.UNAVAILABLE, f"headway {command[4]}: {failure}")
