"""AIPerf: streamed chats, with its own token counts and the server's, and whole conversations."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from .asked import At, Figures, cases
from .command import run_to_end
from .figures import GatewayFigures, ToolFigures

NUM_REQUESTS = 40
NUM_CONVERSATIONS, NUM_TURNS = 4, 5


def _run(at: At, num_requests: int, *more: str) -> dict[str, Any]:
    """Return the report of a run in which every request was answered."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        arguments = [
            *("profile", "--model", at.model, "--url", at.url, "--endpoint-type", "chat"),
            *("--streaming", "--tokenizer", at.tokenizer, "--concurrency", "2"),
            *("--ui-type", "none", "--artifact-dir", folder, *more),
        ]
        run_to_end("aiperf", arguments, place)
        (report,) = place.glob("**/profile_export_aiperf.json")
        figures: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    assert figures["request_count"]["avg"] == num_requests, figures["request_count"]
    assert not figures.get("error_summary"), figures["error_summary"]
    return figures


def _run_chats(at: At, *more: str) -> dict[str, Any]:
    sizes = ("--request-count", str(NUM_REQUESTS), "--isl", "24", "--osl", "32")
    return _run(at, NUM_REQUESTS, *sizes, *more)


def chats(at: At) -> None:
    _run_chats(at)


def usage_in_every_event(at: At) -> Figures:
    gateway = GatewayFigures(at)
    report = _run_chats(at, "--use-server-token-count", "--per-chunk-usage")
    return gateway.compared(
        ToolFigures(
            requests=NUM_REQUESTS,
            output_tokens=round(report["total_usage_completion_tokens"]["avg"]),
            ttft=report["time_to_first_token"]["avg"] / 1e3,
            tpot=report["inter_token_latency"]["avg"] / 1e3,
            e2e=report["request_latency"]["avg"] / 1e3,
        )
    )


def conversations_of_several_turns(at: At) -> None:
    report = _run(
        *(at, NUM_CONVERSATIONS * NUM_TURNS),
        *("--conversation-num", str(NUM_CONVERSATIONS)),
        *("--conversation-turn-mean", str(NUM_TURNS), "--conversation-turn-stddev", "0"),
        *("--conversation-turn-delay-mean", "200", "--isl", "80", "--osl", "40"),
        *("--extra-inputs", "ignore_eos:true", "--session-header", "x-session-id"),
        "--use-server-token-count",
    )
    assert report["overall_usage_prompt_cache_read_pct"]["avg"] > 0


CASES = cases(chats, usage_in_every_event, conversations_of_several_turns)
