"""GuideLLM, streaming as it does by default: its figures over each API, beside the gateway's."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from .asked import At, Figures, cases
from .command import run_to_end
from .figures import GatewayFigures, ToolFigures

NUM_REQUESTS = 40


def _run(at: At, form: str) -> Figures:
    gateway = GatewayFigures(at)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        backend = f"kind=openai_http,target={at.url},model={at.model},request_format={form}"
        arguments = [
            *("run", "--backend", backend, "--profile", "kind=concurrent,streams=2"),
            *("--constraint", f"kind=max_requests,count={NUM_REQUESTS}"),
            *("--tokenizer", f"kind=huggingface_auto,model={at.tokenizer}"),
            *("--data", "kind=synthetic_text,prompt_tokens=24,output_tokens=32"),
            *("--output", "kind=json,path=report.json", "--disable-console-interactive"),
        ]
        run_to_end("guidellm", arguments, place)
        (benchmark,) = json.loads((place / "report.json").read_text(encoding="utf-8"))["benchmarks"]
    metrics = benchmark["metrics"]
    totals = metrics["request_totals"]
    assert (totals["successful"], totals["errored"]) == (NUM_REQUESTS, 0), totals
    names = ("output_token_count", "time_to_first_token_ms", "inter_token_latency_ms")
    tokens, first, later = (metrics[name]["successful"] for name in names)
    return gateway.compared(
        ToolFigures(
            requests=NUM_REQUESTS,
            output_tokens=round(tokens["total_sum"]),
            ttft=first["mean"] / 1e3,
            tpot=later["mean"] / 1e3,
            e2e=metrics["request_latency"]["successful"]["mean"],
        )
    )


def chats(at: At) -> Figures:
    return _run(at, "/v1/chat/completions")


def completions(at: At) -> Figures:
    return _run(at, "/v1/completions")


CASES = cases(chats, completions)
