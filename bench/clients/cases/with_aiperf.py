"""AIPerf: eight streamed chats, with its own token counts and with the server's in every event."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from .asked import At, cases
from .command import run_to_end

NUM_REQUESTS = 8


def _run(at: At, *more: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        arguments = [
            *("profile", "--model", at.model, "--url", at.url, "--endpoint-type", "chat"),
            *("--streaming", "--tokenizer", at.tokenizer, "--request-count", str(NUM_REQUESTS)),
            *("--concurrency", "2", "--isl", "24", "--osl", "12", "--ui-type", "none"),
            *("--artifact-dir", folder, *more),
        ]
        run_to_end("aiperf", arguments, place)
        (report,) = place.glob("**/profile_export_aiperf.json")
        found = json.loads(report.read_text(encoding="utf-8"))
    assert found["request_count"]["avg"] == NUM_REQUESTS, found["request_count"]
    assert not found.get("error_summary"), found["error_summary"]


def chats(at: At) -> None:
    _run(at)


def usage_in_every_event(at: At) -> None:
    _run(at, "--use-server-token-count", "--per-chunk-usage")


CASES = cases(chats, usage_in_every_event)
