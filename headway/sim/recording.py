"""A run as files: requests with their times, and the decisions about them, a line each."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from headway.core.explanations import write_decisions
from headway.errors import Code, HeadwayError
from headway.sim.experiment import Run
from headway.sim.records import Record

REQUESTS, DECISIONS = "requests.jsonl", "decisions.jsonl"


def write_run(folder: Path, run: Run) -> None:
    """Into a folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / REQUESTS).open("w", encoding="utf-8") as file:
        for record in sorted(run.records, key=lambda r: (r.arrival_at, r.request_id)):
            file.write(json.dumps(_packed(record)) + "\n")
    with (folder / DECISIONS).open("w", encoding="utf-8") as file:
        write_decisions(run.decisions, file)


def write_parquet(path: Path, records: Iterable[Record]) -> None:
    """The requests as a Parquet table; HeadwayError without pyarrow (the extra ``analysis``)."""
    try:
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]
    except ImportError:
        message = "Parquet needs pyarrow: pip install 'headway[analysis]'"
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="parquet") from None
    ordered = sorted(records, key=lambda r: (r.arrival_at, r.request_id))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([_packed(record) for record in ordered]), path)


def _packed(record: Record) -> dict[str, object]:
    names = ("request_id", "arrival_at", "num_prompt_tokens", "num_reasoning_tokens")
    times = ("ttft", "ttfat", "tpot", "ttlt")
    return {
        **{name: getattr(record, name) for name in (*names, "num_tokens", *times)},
        "error": record.error,
    }
