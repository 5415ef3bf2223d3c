"""``vllm bench serve``: its figures over each API, beside the gateway's."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from .asked import At, Figures, cases
from .command import run_to_end
from .figures import GatewayFigures, ToolFigures

NUM_REQUESTS = 40


def _run(at: At, backend: str, route: str) -> Figures:
    gateway = GatewayFigures(at)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        arguments = [
            *("bench", "serve", "--backend", backend, "--base-url", at.url, "--endpoint", route),
            *("--model", at.model, "--tokenizer", at.tokenizer, "--dataset-name", "random"),
            *("--random-input-len", "24", "--random-output-len", "32"),
            *("--num-prompts", str(NUM_REQUESTS), "--ignore-eos", "--max-concurrency", "2"),
            *("--percentile-metrics", "ttft,tpot,e2el"),
            *("--save-result", "--result-filename", "out.json"),
        ]
        run_to_end("vllm", arguments, place)
        figures = json.loads((place / "out.json").read_text(encoding="utf-8"))
    assert (figures["completed"], figures.get("failed", 0)) == (NUM_REQUESTS, 0), figures["errors"]
    return gateway.compared(
        ToolFigures(
            requests=NUM_REQUESTS,
            output_tokens=figures["total_output_tokens"],
            ttft=figures["mean_ttft_ms"] / 1e3,
            tpot=figures["mean_tpot_ms"] / 1e3,
            e2e=figures["mean_e2el_ms"] / 1e3,
        )
    )


def chats(at: At) -> Figures:
    return _run(at, "openai-chat", "/v1/chat/completions")


def completions(at: At) -> Figures:
    return _run(at, "openai", "/v1/completions")


CASES = cases(chats, completions)
