"""Kubernetes' inference-perf, streaming: its figures over each API, beside the gateway's."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from .asked import At, Figures, cases
from .command import run_to_end
from .figures import GatewayFigures, ToolFigures

NUM_REQUESTS = 40
CHATS, REPORT = "chats.json", "summary_lifecycle_metrics.json"
ANSWER = "The sum of these numbers is what you would get by hand."  # its length is what is asked


def _config(at: At, api: str) -> dict[str, Any]:
    """Return the tool's settings; prompts are ShareGPT's form in a file of our own.

    Its random prompts are drawn as token ids, and want a tokenizer that reads back what it wrote.
    """
    stage = {"num_requests": NUM_REQUESTS, "concurrency_level": 2}
    return {
        "api": {"type": api, "streaming": True},
        "data": {"type": "shareGPT", "path": CHATS},
        "load": {"type": "concurrent", "num_workers": 1, "stages": [stage]},
        "server": {"type": "vllm", "model_name": at.model, "base_url": at.url},
        "tokenizer": {"pretrained_model_name_or_path": at.tokenizer},
        "storage": {"local_storage": {"path": "."}},
    }


def _chat(number: int) -> dict[str, Any]:
    said = (("human", f"Add {number}, 25, 8."), ("gpt", ANSWER))
    return {"conversations": [{"from": who, "value": text} for who, text in said]}


def _run(at: At, api: str) -> Figures:
    gateway = GatewayFigures(at)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        # the first one is read to see that there is one
        chats = [_chat(10 + number) for number in range(NUM_REQUESTS + 1)]
        (place / CHATS).write_text(json.dumps(chats), encoding="utf-8")
        (place / "config.yml").write_text(json.dumps(_config(at, api)), encoding="utf-8")
        run_to_end("inference-perf", ["--config_file", "config.yml"], place)
        report = json.loads((place / REPORT).read_text(encoding="utf-8"))
    well, times = report["successes"], report["successes"]["latency"]
    assert (well["count"], report["failures"]["count"]) == (NUM_REQUESTS, 0), report["failures"]
    return gateway.compared(
        ToolFigures(
            requests=NUM_REQUESTS,
            output_tokens=round(well["output_tokens"]["mean"] * NUM_REQUESTS),
            ttft=times["time_to_first_token"]["mean"],
            tpot=times["time_per_output_token"]["mean"],
            e2e=times["request_latency"]["mean"],
        )
    )


def chats(at: At) -> Figures:
    return _run(at, "chat")


def completions(at: At) -> Figures:
    return _run(at, "completion")


CASES = cases(chats, completions)
