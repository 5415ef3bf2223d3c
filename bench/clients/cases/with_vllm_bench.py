"""``vllm bench serve``: eight requests over each API."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from .asked import At, cases
from .command import run_to_end

NUM_REQUESTS = 8


def _run(at: At, backend: str, route: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        arguments = [
            *("bench", "serve", "--backend", backend, "--base-url", at.url, "--endpoint", route),
            *("--model", at.model, "--tokenizer", at.tokenizer, "--dataset-name", "random"),
            *("--random-input-len", "24", "--random-output-len", "12"),
            *("--num-prompts", str(NUM_REQUESTS), "--save-result", "--result-filename", "out.json"),
        ]
        run_to_end("vllm", arguments, place)
        found = json.loads((place / "out.json").read_text(encoding="utf-8"))
    assert (found["completed"], found.get("failed", 0)) == (NUM_REQUESTS, 0), found["errors"]
    assert found["total_output_tokens"] > 0


def chats(at: At) -> None:
    _run(at, "openai-chat", "/v1/chat/completions")


def completions(at: At) -> None:
    _run(at, "openai", "/v1/completions")


CASES = cases(chats, completions)
