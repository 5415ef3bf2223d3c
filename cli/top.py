"""``headway top``: the cluster and its most pressing requests, in the terminal."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cli.cells import number, seconds, share, table_of
from cli.console_frames import Json, figures, frames
from cli.top_sessions import sessions_table
from headway.core.gateway.rows import PHASES, SORTS, RowQuery
from services.local.run_file import running_url

_STATES = {"serving": "green", "draining": "yellow", "starting": "cyan", "gone": "bold red"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    add = parser.add_argument
    add("--url", default="", help="a gateway of the live cluster; default: of `headway up` here")
    add("--log-dir", type=Path, default=Path("run"), help="of `headway up`, which leaves it there")
    add("--api-key", default="", help="an operator's; default: $HEADWAY_API_KEY")
    add("--sort", choices=SORTS, default="slack", help="requests that come first (slack)")
    add("--phase", choices=PHASES, default="", help="requests of this phase alone")
    add("--class", dest="service_class", default="", metavar="NAME", help="of this class alone")
    add("--tenant", default="", metavar="NAME", help="of this tenant alone")
    add("--worker", default="", metavar="ID", help="on this worker alone")
    add("--session", default="", metavar="NAME", help="of this session alone")
    add("--rows", type=int, default=20, metavar="N", help="requests shown (default 20)")
    add("--once", action="store_true", help="print once, and end; so it does where no terminal is")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show until Ctrl-C; HeadwayError where no console answers."""
    filters = (args.service_class, args.tenant, args.worker, args.phase, args.session)
    RowQuery(args.sort, *filters, num_rows=args.rows)  # refuses what no gateway shows
    asked = {
        "sort": args.sort,
        "phase": args.phase,
        "class": args.service_class,
        "tenant": args.tenant,
        "worker": args.worker,
        "session": args.session,
        "rows": str(args.rows),
    }
    query = {name: value for name, value in asked.items() if value}
    url = args.url or running_url(args.log_dir)
    console = Console()
    show = _follow if console.is_terminal and not args.once else _print_once
    try:
        asyncio.run(show(console, url, args.api_key, query))
    except KeyboardInterrupt:
        return 0
    return 0


async def _print_once(console: Console, url: str, key: str, query: Mapping[str, str]) -> None:
    async for frame in frames(url, key, query):
        console.print(picture(frame))
        return


async def _follow(console: Console, url: str, key: str, query: Mapping[str, str]) -> None:
    with Live(console=console, screen=True, auto_refresh=False) as live:
        async for frame in frames(url, key, query):
            live.update(picture(frame), refresh=True)


def picture(frame: Json) -> Group:
    """Return a frame as tables."""
    tables = [_head(frame), _workers(frame), _requests(frame)]
    if frame.get("sessions", {}).get("rows"):
        tables.append(sessions_table(frame))
    return Group(*tables)


def _head(frame: Json) -> Text:
    gateway, latest = frame["gateway"], figures(frame)
    text = Text(f"{gateway['model']}", style="bold")
    text.append(f"  preset {gateway['preset']}, {gateway['status']}", style="not bold")
    text.append(f", {_leader(frame)}", style="not bold")
    text.append(f"\n{gateway['open']} open, {gateway['waiting']} without a token")
    for name, unit in (("ended_per_s", "requests/s"), ("tokens_per_s", "tokens/s")):
        text.append(f", {number(latest.get(name))} {unit}")
    text.append(f", TTFT P50 {seconds(latest.get('ttft_p50'))}")
    text.append(f" P99 {seconds(latest.get('ttft_p99'))}, promises {share(latest.get('kept'))}\n")
    return text


def _leader(frame: Json) -> str:
    """Return who leads, and how old the workers' table is where nobody answers."""
    leader, silent = frame.get("leader"), frame.get("silent", {})
    said = f"leader {leader['id']}" if leader else "no leader"
    if "leader" in silent:
        age = seconds(frame["now"] - silent["leader"])
        said += f"{' does not answer' if leader else ''}, workers as they were {age} ago"
    return f"{said}, the store does not answer" if "store" in silent else said


def _workers(frame: Json) -> Table | Text:
    cards = frame.get("workers", {})
    if not cards:
        return Text("No worker is known.\n", style="dim")
    names = ("worker", "role", "state", "batch", "KV", "in 10 s", "queued", "arriving", "pass")
    table = table_of(names, first_number=3)
    for worker_id, card in cards.items():
        state = Text(card["state"], style=_STATES.get(card["state"], ""))
        values = (
            number(card.get("batch")),
            share(card.get("kv_used")),
            share(card.get("kv_ahead")),
            number(card.get("queued_tokens")),
            number(card.get("arriving")),
            seconds(card.get("pass_time")),
        )
        table.add_row(worker_id, card["role"], state, *values)
    return table


def _requests(frame: Json) -> Table | Text:
    requests = frame.get("requests", {})
    if not requests.get("order"):
        return Text("No request is open that fits.", style="dim")
    names = ("request", "phase", "class", "tenant", "worker", "prompt", "output", "wait", "slack")
    table = table_of(names, first_number=5)
    for cells in _rows(requests):
        table.add_row(*cells)
    return table


def _rows(requests: Json) -> Iterator[tuple[str, ...]]:
    for request_id in requests["order"]:
        row = requests["rows"].get(request_id)
        if row is None:
            continue
        target = f" → {row['target']}" if "target" in row else ""
        yield (
            request_id,
            row["phase"],
            row["class"] or "–",
            row["tenant"] or "–",
            (row["worker"] or "–") + target,
            number(row["prompt"]),
            number(row["output"]),
            seconds(row["waited"]),
            seconds(row.get("slack")),
        )
