"""A run as files: requests with their times, and the decisions about them, a line each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from bench.output import require_extra
from headway.sim.experiment import Run
from headway.sim.records import Record
from services.scheduler.explanations import write_decisions

REQUESTS, DECISIONS = "requests.jsonl", "decisions.jsonl"
_COLUMNS: Mapping[str, type] = MappingProxyType(
    {
        "request_id": str,
        "arrival_at": float,
        "num_prompt_tokens": int,
        "num_reasoning_tokens": int,
        "num_tokens": int,
        "ttft": float,
        "ttfat": float,
        "tpot": float,
        "ttlt": float,
        "error": str,
    }
)
"""Columns of a request, in every file; times are empty where there is none."""


def write_run(folder: Path, run: Run) -> None:
    """Into a folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / REQUESTS).open("w", encoding="utf-8") as file:
        for record in sorted(run.records, key=lambda r: (r.arrival_at, r.request_id)):
            file.write(json.dumps(_packed(record)) + "\n")
    with (folder / DECISIONS).open("w", encoding="utf-8") as file:
        write_decisions(run.decisions, file)


def write_parquet(path: Path, records: Iterable[Record]) -> None:
    """Write requests as a Parquet table; HeadwayError without pyarrow (extra ``analysis``)."""
    require_extra("pyarrow", "--parquet")
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    ordered = sorted(records, key=lambda r: (r.arrival_at, r.request_id))
    path.parent.mkdir(parents=True, exist_ok=True)
    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in _COLUMNS.items()])
    pq.write_table(pa.Table.from_pylist([_packed(r) for r in ordered], schema), path)


def _packed(record: Record) -> dict[str, object]:
    return {name: getattr(record, name) for name in _COLUMNS}
