"""The page with what became of every client's cases: ``docs/clients.md``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.clients.inside import FAILED, PASSED, REFUSED

RESULTS = Path(__file__).with_name("results.json")
BEGIN, END = "<!-- clients: drawn from bench/clients/results.json -->", "<!-- end -->"
_FIGURES = ("requests", "output tokens", "TTFT", "TPOT", "E2E")
Row = Mapping[str, Any]


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results with those of the clients that were run again in their places."""
    again = {case["client"] for case in new["cases"]}
    kept = [case for case in old.get("cases", ()) if case["client"] not in again]
    return {**new, "cases": [*kept, *new["cases"]]}


def read_results() -> dict[str, Any]:
    """Return the results that were kept."""
    results: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return results


def drawn(results: Mapping[str, Any]) -> str:
    """Return the tables in Markdown: clients with their counts, figures, then every case."""
    cases: Sequence[Row] = results["cases"]
    clients = [*dict.fromkeys((case["client"], case["version"]) for case in cases)]
    counts = (_counted(name, version, cases) for name, version in clients)
    every = ((case["client"], case["case"], case["outcome"], _cell(case["said"])) for case in cases)
    return "\n\n".join(
        [
            f"Run on {results['date']}.",
            _table(("client", "version", PASSED, REFUSED, FAILED), counts),
            _table(("client", "case", *_FIGURES), map(_compared, filter(_has_figures, cases))),
            _table(("client", "case", "outcome", "why"), every),
        ]
    )


def rewrite(page: Path, results: Mapping[str, Any]) -> None:
    """Draw the tables into a page."""
    text = page.read_text(encoding="utf-8")
    new = f"{BEGIN}\n{drawn(results)}\n{END}"
    rewritten = re.sub(f"{re.escape(BEGIN)}.*?{END}", lambda _: new, text, flags=re.DOTALL)
    page.write_text(rewritten, encoding="utf-8")


def _counted(name: str, version: str, cases: Iterable[Row]) -> tuple[str, ...]:
    outcomes = [case["outcome"] for case in cases if case["client"] == name]
    counts = (str(outcomes.count(each)) for each in (PASSED, REFUSED, FAILED))
    return (name, version, *counts)


def _has_figures(case: Row) -> bool:
    return bool(case.get("figures"))


def _compared(case: Row) -> tuple[str, ...]:
    """Return a row of counts, and of times (ms) as the client has them and as the gateway has."""
    client, gateway = (case["figures"][side] for side in ("client", "gateway"))
    counts = (str(client[name]) for name in ("requests", "output_tokens"))
    times = (f"{client[n] * 1e3:.1f}, {gateway[n] * 1e3:.1f}" for n in ("ttft", "tpot", "e2e"))
    return (case["client"], case["case"], *counts, *times)


def _cell(text: str) -> str:
    """Return a text that stays in its cell."""
    return text.replace("|", "/").replace("<", "‹").replace(">", "›")


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
