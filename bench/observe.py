"""``python -m bench.observe``: Grafana's board and Prometheus' rules, in ``deploy/observe``.

Both are tables here. A test compares the files with them, and every metric with the services'
registries.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parent.parent / "deploy" / "observe"
BOARD, RULES = "headway-board.json", "rules.yaml"
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 3
_BUDGET = 0.01
"""The share of promises that may be broken: an SLO of 99 %."""
_MOST_MISSED = 0.5
"""The share of expected hits that may be missing."""
_FAST_BURN = 14.4
"""Rate of burning at which a month's budget is gone in two days (Google's SRE workbook)."""


class Panel(NamedTuple):
    """A graph: its title, what it shows, its unit and its legend."""

    title: str
    expression: str
    unit: str = "short"
    legend: str = ""


class Alert(NamedTuple):
    """A rule: it fires when the expression has held for so long."""

    name: str
    expression: str
    lasts: str
    severity: str
    summary: str
    look: str


def _p(metric: str, share: float, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket[1m])))"


_BROKEN = 'headway_gateway_class_promises_total{kept="no"}'
_ALL = "headway_gateway_class_promises_total"


def _burn(window: str) -> str:
    broken = f"sum by (service_class) (rate({_BROKEN}[{window}]))"
    return f"{broken} / sum by (service_class) (rate({_ALL}[{window}]))"


def _misses(window: str) -> str:
    """Return the share of the hits expected at dispatches that admissions did not have."""
    expected, reported = (
        f"sum by (model) (rate(headway_scheduler_prefix_{each}_tokens_total[{window}]))"
        for each in ("expected", "reported")
    )
    return f"1 - {reported} / {expected}"


PANELS: Sequence[Panel] = (
    Panel("Ended", "sum by (end) (rate(headway_gateway_requests_total[1m]))", "reqps", "{{end}}"),
    Panel("Tokens/s", "sum(rate(headway_gateway_output_tokens_total[1m]))", "short", "output"),
    Panel("Waiting and running", "sum(headway_gateway_waiting_requests)", "short", "waiting"),
    Panel("TTFT P99", _p("headway_gateway_ttft_seconds", 0.99), "s", "P99"),
    Panel("TTFAT P99", _p("headway_gateway_ttfat_seconds", 0.99), "s", "P99"),
    Panel("TPOT P99", _p("headway_gateway_tpot_seconds", 0.99), "s", "P99"),
    Panel(
        "TTFT P99 by class",
        _p("headway_gateway_class_ttft_seconds", 0.99, "service_class"),
        "s",
        "{{service_class}}",
    ),
    Panel("Broken promises by class", _burn("5m"), "percentunit", "{{service_class}}"),
    Panel("Errors", "sum by (code) (rate(headway_gateway_errors_total[1m]))", "reqps", "{{code}}"),
    Panel("Leaders", "sum(headway_scheduler_leads)", "short", "leaders"),
    Panel(
        "Wait in the window P99",
        _p("headway_scheduler_wait_seconds", 0.99, "question"),
        "s",
        "{{question}}",
    ),
    Panel(
        "Moves", "sum by (cause) (rate(headway_scheduler_moves_total[1m]))", "short", "{{cause}}"
    ),
    Panel(
        "KV in use", "max by (instance) (headway_worker_kv_usage)", "percentunit", "{{instance}}"
    ),
    Panel(
        "Preemptions",
        "sum by (kind) (rate(headway_worker_preemptions_total[1m]))",
        "short",
        "{{kind}}",
    ),
    Panel(
        "Pass time P99",
        _p("headway_worker_forward_pass_seconds", 0.99, "instance"),
        "s",
        "{{instance}}",
    ),
    Panel(
        "Cached share of prompts",
        "sum(rate(headway_gateway_cached_prompt_tokens_total[1m])) / "
        "sum(rate(headway_gateway_prompt_tokens_total[1m]))",
        "percentunit",
        "cached",
    ),
    Panel("Hits expected, less those reported", _misses("1m"), "percentunit", "{{model}}"),
    Panel(
        "Sessions", "sum by (state) (headway_gateway_open_sessions)", "short", "{{state}} sessions"
    ),
    Panel("Task time P99", _p("headway_gateway_session_task_seconds", 0.99), "s", "P99"),
    Panel(
        "Waiting for their own unit",
        "sum by (model) (headway_scheduler_held_requests)",
        "short",
        "{{model}}",
    ),
)

ALERTS: Sequence[Alert] = (
    Alert(
        "HeadwayNoLeader",
        "sum(headway_scheduler_leads) < 1 or absent(headway_scheduler_leads)",
        "30s",
        "critical",
        "No scheduler leads: new requests wait",
        "the schedulers' logs and the store",
    ),
    Alert(
        "HeadwayNoPrefillWorker",
        "max by (model) (headway_scheduler_active_instances) < 1 "
        "or sum(headway_scheduler_workers) < 1",
        "1m",
        "critical",
        "No worker {{ with $labels.model }}of {{ . }} {{ end }}takes prompts",
        "the prefill workers' logs",
    ),
    Alert(
        "HeadwayNoDecodeWorker",
        "max(headway_scheduler_awaiting_decode) > 0 "
        "and on() sum(rate(headway_scheduler_handoffs_total[1m])) == 0",
        "1m",
        "critical",
        "Prefilled requests find no worker that decodes them",
        "the decode workers' logs and their KV",
    ),
    Alert(
        "HeadwayHitsMissing",
        f"{_misses('15m')} > {_MOST_MISSED}",
        "15m",
        "warning",
        "{{ $value | humanizePercentage }} of the prefix hits that the leader expects are missing",
        "`prefix_false_claims_total`, and workers whose prefix cache is off or smaller than told",
    ),
    Alert(
        "HeadwaySloBurn",
        f"({_burn('5m')}) > {_FAST_BURN * _BUDGET:g} and ({_burn('1h')}) > "
        f"{_FAST_BURN * _BUDGET:g}",
        "2m",
        "warning",
        "Class {{ $labels.service_class }} breaks its promises {{ $value | humanizePercentage }}",
        "`headway explain` of a slow request of the class",
    ),
    Alert(
        "HeadwayBlocksLeak",
        "headway_worker_kv_usage > 0 and headway_worker_running_requests == 0 "
        "and headway_worker_queued_prefill_tokens == 0",
        "15m",
        "warning",
        "{{ $labels.instance }} keeps KV although it has no request",
        "the worker's log; a drain and a restart free it",
    ),
    Alert(
        "HeadwayLinkDown",
        "headway_gateway_scheduler_connected == 0",
        "1m",
        "critical",
        "Gateway {{ $labels.instance }} has no link to a scheduler",
        "both logs, and the network between them",
    ),
    Alert(
        "HeadwayWorkerLinkDown",
        "headway_scheduler_closed_worker_links > 0",
        "1m",
        "critical",
        "The leader has no link to {{ $value }} workers that are members",
        "its log (worker_stream_ended), the workers' logs, the network between them",
    ),
    Alert(
        "HeadwayTokenLinkDown",
        "increase(headway_worker_broken_token_links_total[5m]) > 2",
        "1m",
        "critical",
        "Worker {{ $labels.instance }} cannot keep a stream to a gateway: its requests are retried",
        "its log (token_stream_ended), the gateway's log, the network between them",
    ),
    Alert(
        "HeadwayKvLinkDown",
        'sum by (instance) (rate(headway_worker_kv_transfers_total{end="broken"}[5m])) '
        "> sum by (instance) (rate(headway_worker_kv_transfers_total[5m])) / 2",
        "2m",
        "warning",
        "Worker {{ $labels.instance }} cannot send KV to other workers",
        "its log (kv_transfer_failed), the network between the workers",
    ),
    Alert(
        "HeadwayNotServing",
        "headway_service_serving == 0",
        "2m",
        "warning",
        "{{ $labels.instance }} does not serve",
        "its log",
    ),
)


def expressions() -> Iterable[str]:
    """Yield every expression of the board and of the rules."""
    yield from (panel.expression for panel in PANELS)
    yield from (alert.expression for alert in ALERTS)


def board() -> dict[str, Any]:
    """Return Grafana's board."""
    return {
        "uid": "headway",
        "title": "Headway",
        "schemaVersion": 39,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, _COLUMNS)
    target = {"refId": "A", "expr": panel.expression, "legendFormat": panel.legend}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": {"type": "prometheus", "uid": "headway"},
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [target],
    }


def rules() -> str:
    """Return Prometheus' rules; JSON strings are YAML's, too."""
    lines = ["groups:", "  - name: headway", "    rules:"]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expression)}",
            f"        for: {alert.lasts}",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          look: {json.dumps(alert.look)}",
        ]
    return "\n".join(lines) + "\n"


def files() -> dict[str, str]:
    """Return the contents of both files by name."""
    return {BOARD: json.dumps(board(), indent=1) + "\n", RULES: rules()}


def write(folder: Path) -> None:
    """Write both files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (folder / name).write_text(text, "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
