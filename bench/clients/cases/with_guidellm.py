"""GuideLLM, streaming as it does by default: eight requests over each API."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from .asked import At, cases
from .command import run_to_end

NUM_REQUESTS = 8


def _run(at: At, form: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        backend = f"kind=openai_http,target={at.url},model={at.model},request_format={form}"
        arguments = [
            *("run", "--backend", backend, "--profile", "kind=concurrent,streams=2"),
            *("--constraint", f"kind=max_requests,count={NUM_REQUESTS}"),
            *("--tokenizer", f"kind=huggingface_auto,model={at.tokenizer}"),
            *("--data", "kind=synthetic_text,prompt_tokens=24,output_tokens=12"),
            *("--output", "kind=json,path=report.json", "--disable-console-interactive"),
        ]
        run_to_end("guidellm", arguments, place)
        (found,) = json.loads((place / "report.json").read_text(encoding="utf-8"))["benchmarks"]
    totals = found["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (NUM_REQUESTS, 0), totals


def chats(at: At) -> None:
    _run(at, "/v1/chat/completions")


def completions(at: At) -> None:
    _run(at, "/v1/completions")


CASES = cases(chats, completions)
