"""A run's figures: as JSON for machines, as tables for people."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console

from bench.serve.classes import by_class
from bench.serve.replay import ReplayedRequest
from headway.metrics import METRICS, RequestTimes, Slo, Spread, goodput, percentile
from results.by_class import print_by_class
from results.output import make_table, write_json

Summary = dict[str, Any]


def summarise(outcomes: Sequence[ReplayedRequest], slo: Slo, duration: float) -> Summary:
    """Return all figures; times in seconds, rates over ``duration`` (first arrival to last end)."""
    finished = [outcome.times for outcome in outcomes if outcome.times is not None]
    num_tokens = sum(times.num_output_tokens for times in finished)
    late = sorted(outcome.sent_at - outcome.planned.arrival_at for outcome in outcomes)
    per_s = 1.0 / duration if duration > 0.0 else 0.0
    kept = goodput(finished, slo, duration)
    return {
        "num_requests": len(outcomes),
        "num_finished": len(finished),
        "duration": duration,
        **{name: _as_dict(_spread(name, outcomes)) for name in METRICS},
        "requests_per_s": len(finished) * per_s,
        "output_tokens_per_s": num_tokens * per_s,
        "output_tokens": num_tokens,
        "prompt_tokens": sum(outcome.prompt_tokens or 0 for outcome in outcomes),
        "slo": dict(slo.limits),
        "goodput": kept,
        "slo_attainment": kept * duration / len(outcomes) if outcomes else 0.0,
        "by_class": by_class(outcomes),
        "accuracy": _accuracy(outcomes),
        "errors": dict(Counter(each.error_kind for each in outcomes if each.error_kind)),
        "tokens_per_event": _tokens_per_event(outcomes),
        "sent_late_p99": percentile(late, 0.99) if late else 0.0,
    }


def _spread(name: str, outcomes: Sequence[ReplayedRequest]) -> Spread | None:
    """Return the spread over requests; tbt over all gaps of all requests."""
    if name == "tbt":
        return Spread.of(gap for outcome in outcomes for gap in outcome.gaps)
    values = (each.times.metric(name) for each in outcomes if each.times is not None)
    return Spread.of(value for value in values if value is not None)


def _as_dict(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else asdict(spread)


def _accuracy(outcomes: Iterable[ReplayedRequest]) -> dict[str, dict[str, int]]:
    """Right answers and answers by task, of those with a known answer."""
    by_task: dict[str, dict[str, int]] = {}
    for outcome in outcomes:
        if outcome.correct is not None:
            of_task = by_task.setdefault(outcome.planned.task, {"num_right": 0, "num_answers": 0})
            of_task["num_answers"] += 1
            of_task["num_right"] += outcome.correct
    return dict(sorted(by_task.items()))


def _tokens_per_event(outcomes: Iterable[ReplayedRequest]) -> float:
    done = [(each.times.num_output_tokens, len(each.gaps) + 1) for each in outcomes if each.times]
    num_events = sum(events for _, events in done)
    return sum(tokens for tokens, _ in done) / num_events if num_events else 0.0


# --- for machines ---------------------------------------------------------------------


def write_report(
    path: Path, config: Mapping[str, Any], summary: Summary, outcomes: Iterable[ReplayedRequest]
) -> None:
    """Write ``config``, ``summary`` and a record a request; INVALID_ARGUMENT where that fails."""
    content = {
        "config": {name: _plain(value) for name, value in config.items()},
        "summary": summary,
        "requests": [record(outcome) for outcome in outcomes],
    }
    write_json(path, content, indent=1)


def _plain(value: Any) -> Any:
    """Return a value as JSON can say it: paths and infinite rates as text."""
    odd = isinstance(value, Path) or (isinstance(value, float) and not math.isfinite(value))
    return str(value) if odd else value


def record(outcome: ReplayedRequest) -> dict[str, Any]:
    """Return a request for JSON; instants in seconds after the start of the run."""
    planned, times = outcome.planned, outcome.times
    record: dict[str, Any] = {
        "index": planned.index,
        "task": planned.task or None,
        "planned_at": planned.arrival_at,
        "sent_at": outcome.sent_at,
        "ended_at": outcome.ended_at,
        "finish_reason": outcome.finish_reason,
        "correct": outcome.correct,
        "error_kind": outcome.error_kind or None,
        "error": outcome.error or None,
        "num_prompt_tokens": outcome.prompt_tokens,
        "num_cached_tokens": outcome.cached_tokens,
    }
    return record if times is None else record | _times_record(times)


def _times_record(times: RequestTimes) -> dict[str, Any]:
    return {
        "num_output_tokens": times.num_output_tokens,
        "first_token_at": times.first_token_at,
        "first_answer_at": times.first_answer_at,
        "last_token_at": times.last_token_at,
        "longest_gap": times.longest_gap,
        **{name: times.metric(name) for name in ("ttft", "ttfat", "tpot", "ttlt")},
    }


# --- for people -----------------------------------------------------------------------


def print_report(console: Console, title: str, summary: Summary, notes: Iterable[str]) -> None:
    """Print times in ms, the figures by class, then everything else."""
    console.print(title, style="bold", markup=False, highlight=False, soft_wrap=True)
    rows = []
    for name in METRICS:
        spread = summary[name]
        cells = ["-"] * 4 if spread is None else [_ms(value) for value in spread.values()]
        rows.append((name.upper(), *cells))
    titles = ("ms", "mean", "P50", "P90", "P99")
    console.print(make_table(titles, rows, box=box.HEAVY_HEAD))
    print_by_class(console, "by class", {"": summary["by_class"]})
    for label, value in [*_facts(summary), *(("note", note) for note in notes)]:
        console.print(f"{label:<29} {value}", markup=False, highlight=False, soft_wrap=True)


def _facts(summary: Summary) -> list[tuple[str, str]]:
    failed = summary["num_requests"] - summary["num_finished"]
    slo = str(Slo(summary["slo"]))
    facts = [
        (
            "requests",
            f"{summary['num_finished']} finished, {failed} failed, in {summary['duration']:.1f} s",
        ),
        (
            "throughput",
            f"{summary['requests_per_s']:.2f} requests/s, "
            f"{summary['output_tokens_per_s']:.1f} output tokens/s",
        ),
        (
            "goodput",
            f"{summary['goodput']:.2f} requests/s, {summary['slo_attainment']:.1%} of all"
            f" within {slo or 'no limits'}",
        ),
    ]
    if summary["accuracy"]:
        facts.append(("right answers", _accuracy_text(summary["accuracy"])))
    errors = summary["errors"]
    counted = ", ".join(f"{count} {kind}" for kind, count in sorted(errors.items()))
    facts.append(("errors", counted or "none"))
    if summary["tokens_per_event"] > 1.2:
        text = f"{summary['tokens_per_event']:.2f} tokens came in one event: TBT is between events"
        facts.append(("note", text))
    if summary["sent_late_p99"] > 0.010:
        text = f"requests left late (P99 {_ms(summary['sent_late_p99'])} ms): this machine is busy"
        facts.append(("note", text))
    return facts


def _accuracy_text(accuracy: Mapping[str, Mapping[str, int]]) -> str:
    num_right = sum(task["num_right"] for task in accuracy.values())
    num_answers = sum(task["num_answers"] for task in accuracy.values())
    tasks = ", ".join(
        f"{name} {each['num_right']}/{each['num_answers']}" for name, each in accuracy.items()
    )
    return f"{num_right / num_answers:.1%} of {num_answers} ({tasks})"


def _ms(seconds: float) -> str:
    value = seconds * 1000
    digits = 0 if value >= 1000 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}" if math.isfinite(value) else "-"
