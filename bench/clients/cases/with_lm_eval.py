"""lm-eval on a task of our own: choices by log-likelihood, and answers that are generated."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from .asked import At, cases
from .command import run_to_end

ROWS = [
    {"task": f"Add {a}, {b}.", "choices": [str(a + b), str(a + b + 1)], "right": 0}
    for a, b in ((17, 25), (3, 4), (50, 8), (12, 12))
]
TASK: dict[str, Any] = {
    "task": "sums",
    "dataset_path": "json",
    "test_split": "test",
    "doc_to_text": "{{task}}",
    "doc_to_target": "{{right}}",
}
CHOSEN = {
    **TASK,
    "output_type": "multiple_choice",
    "doc_to_choice": "{{choices}}",
    "metric_list": [{"metric": "acc"}],
}
GENERATED = {
    **TASK,
    "output_type": "generate_until",
    "doc_to_target": "{{choices[0]}}",
    "generation_kwargs": {"until": ["<end>"], "max_gen_toks": 600},
    "metric_list": [{"metric": "exact_match"}],
}


def _run(at: At, task: dict[str, Any], model: str, route: str, *more: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        rows = place / "rows.jsonl"
        rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
        files = {"dataset_kwargs": {"data_files": {"test": str(rows)}}}
        (place / "sums.yaml").write_text(json.dumps({**task, **files}), encoding="utf-8")
        named = f"model={at.model},base_url={at.v1}/{route},tokenizer={at.tokenizer}"
        arguments = [
            *("run", "--model", model, "--model_args", f"{named},num_concurrent=2"),
            *("--tasks", "sums", "--include_path", folder, "--output_path", "out", *more),
        ]
        run_to_end("lm-eval", arguments, place)
        (report,) = place.glob("out/**/results*.json")
        metrics: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))["results"]["sums"]
    return metrics


def log_likelihood(at: At) -> None:
    assert 0.0 <= _run(at, CHOSEN, "local-completions", "completions")["acc,none"] <= 1.0


def generation(at: At) -> None:
    assert "exact_match,none" in _run(at, GENERATED, "local-completions", "completions")


def generation_in_chats(at: At) -> None:
    more = ("--apply_chat_template",)
    metrics = _run(at, GENERATED, "local-chat-completions", "chat/completions", *more)
    assert metrics["exact_match,none"] == 1.0


CASES = cases(log_likelihood, generation, generation_in_chats)
