"""A run as files: requests with their times, and the decisions about them, a line each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from headway.life.form import packed
from results.output import require_extra

if TYPE_CHECKING:  # whoever reads a run needs no simulator
    from headway.sim.experiment import Run
    from headway.sim.records import Record

REQUESTS, DECISIONS, LIVES = "requests.jsonl", "decisions.jsonl", "lives.jsonl"
MAKING = "run.json"
"""The file of a run that says how it was made, so that it can be simulated again."""
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


def write_run(folder: Path, run: Run, making: Mapping[str, object] | None = None) -> None:
    """Into a folder, which is made if need be. ``making``: what makes the run again."""
    from services.scheduler.explanations import write_decisions

    folder.mkdir(parents=True, exist_ok=True)
    if making is not None:
        (folder / MAKING).write_text(json.dumps(making, indent=1) + "\n", "utf-8")
    with (folder / REQUESTS).open("w", encoding="utf-8") as file:
        for record in sorted(run.records, key=lambda r: (r.arrival_at, r.request_id)):
            file.write(json.dumps(_packed(record)) + "\n")
    with (folder / DECISIONS).open("w", encoding="utf-8") as file:
        write_decisions(run.decisions, file)
    with (folder / LIVES).open("w", encoding="utf-8") as file:
        for life in run.lives:
            file.write(json.dumps(packed(life), separators=(",", ":")) + "\n")


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
